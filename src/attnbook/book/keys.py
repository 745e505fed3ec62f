"""What makes a kept result stale: a hash over everything that a page depends on.

A chapter's outputs depend on its code cells, on all of `src/`, on the recorded results, on the versions installed and
on the machine. Prose does not change them, so a chapter whose text alone changed is not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

IGNORED = {"__pycache__", ".ipynb_checkpoints"}


def files_under(folder: Path) -> list[Path]:
    """Every file under `folder` that a person or a build wrote on purpose, sorted."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not (IGNORED & set(path.parts) or any(part.endswith(".egg-info") for part in path.parts))
    )


def digest(parts: Iterable[str | bytes]) -> str:
    """Hexadecimal hash of the parts; where one ends and the next begins counts too."""
    sha = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        sha.update(len(raw).to_bytes(8, "little"))
        sha.update(raw)
    return sha.hexdigest()[:32]


def tree(root: Path, *places: str) -> str:
    """Hash of the names and contents of the files at `places` under `root`; absent ones are empty."""
    parts: list[str | bytes] = []
    for place in places:
        path = root / place
        for file in [path] if path.is_file() else files_under(path):
            parts += [file.relative_to(root).as_posix(), file.read_bytes()]
    return digest(parts)


def versions() -> str:
    """Python and every installed distribution, as one text (read off the names of the .dist-info folders: fast)."""
    folders = {path.name for entry in sys.path if entry for path in Path(entry).glob("*.dist-info")}
    return "\n".join([sys.version, *sorted(folders)])


def machine() -> str:
    """The NVIDIA GPUs and driver that are there, and the settings that choose a machine or a compiler option."""
    driver = Path("/proc/driver/nvidia/version")
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [line for gpu in gpus for line in gpu.read_text().splitlines() if line.startswith("Model")]
    settings = [
        f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(("ATTNBOOK_", "CUTE_DSL_", "CUDA_VIS"))
    ]
    return "\n".join([driver.read_text() if driver.is_file() else "no driver", *models, *settings])


def surroundings(root: Path) -> str:
    """Hash of what every chapter depends on besides its own cells."""
    code = tree(root, "src", "book/results", "requirements.txt", "constraints.txt")
    return digest([code, versions(), machine()])


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs_key(notebook: dict[str, Any], around: str) -> str:
    """Hash of what the outputs of `notebook` (parsed JSON) depend on, with `around` from `surroundings`."""
    cells = [[cell["source"], cell["metadata"]] for cell in code_cells(notebook)]
    return digest([json.dumps(cells, sort_keys=True), around])
