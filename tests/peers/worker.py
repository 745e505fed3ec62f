"""A process in which one library of somebody else's lives: `python worker.py MODULE`, one case a line on stdin.

A process of its own, because the libraries want to be told at import which GPU they are for, because they expect
Triton (used for benchmarks and for kernels that are not run here), and because what is put in its place must not be
seen by other tests. A line is a JSON object {"case": function of the module, **keywords}; the answer is one line of
JSON: what the function returned, or {"error": the traceback}.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from unittest.mock import MagicMock


def stand_in_for_triton() -> None:
    """Modules that answer to everything, where Triton is not installed (PyTorch for CPUs comes without)."""
    try:
        import triton  # noqa: F401
    except ImportError:
        import torch._dynamo
        import torch._inductor.runtime.hints  # noqa: F401  (both look for Triton themselves; let them find none)

        for name in ("triton", "triton.language", "triton.testing", "triton.compiler", "triton.runtime.cache"):
            module = MagicMock(name=name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name] = module


def this_machine(sms: int) -> None:
    """Answers to what kernels ask the driver while they are compiled, which is not there: how many SMs."""
    from cutlass.utils import HardwareInfo

    HardwareInfo.__init__ = lambda self, device_id=0: None  # type: ignore[method-assign]
    HardwareInfo.get_device_multiprocessor_count = lambda self: sms  # type: ignore[method-assign]


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print
    sys.path.insert(0, str(Path(__file__).parent))
    stand_in_for_triton()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the compiler writes its PTX here
        module = importlib.import_module(name)
        for line in sys.stdin:
            keywords = json.loads(line)
            try:
                answer = getattr(module, keywords.pop("case"))(**keywords)
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), file=answers, flush=True)
        os.chdir("/")
    answers.close()
    os._exit(0)  # taking all of it down in order would only take time


if __name__ == "__main__":
    main(sys.argv[1])
