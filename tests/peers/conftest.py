"""A worker process for each library and architecture; see worker.py."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PACKAGES = {"flash_attention": "flash-attn-4", "quack_kernels": "quack-kernels"}


class Worker:
    """The process of one library for one architecture."""

    def __init__(self, module: str, arch: str) -> None:
        number = arch.removeprefix("sm_").removesuffix("a")
        settings = {
            "CUTE_DSL_ARCH": arch,
            "FLASH_ATTENTION_ARCH": f"sm_{number}",
            "FLASH_ATTENTION_NUM_SMS": "132" if number == "90" else "148",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **settings},
            text=True,
        )

    def __call__(self, case: str, **keywords: Any) -> dict[str, Any]:
        """What the module's function `case` returns; its exception is this test's failure."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"case": case, **keywords}), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the worker ended with status {self.process.wait()}; its messages stand above", pytrace=False)
        answer = json.loads(line)
        if "error" in answer:
            pytest.fail(answer["error"], pytrace=False)
        return answer

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def worker() -> Iterator[Callable[[str, str], Worker]]:
    """worker(module, architecture): the process in which that module's cases run."""
    running: dict[tuple[str, str], Worker] = {}

    def start(module: str, arch: str) -> Worker:
        try:
            importlib.metadata.version(PACKAGES[module])
        except importlib.metadata.PackageNotFoundError:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"{PACKAGES[module]} is not installed (requirements-peers.txt)")
        if (module, arch) not in running:
            running[module, arch] = Worker(module, arch)
        return running[module, arch]

    yield start
    for process in running.values():
        process.close()
