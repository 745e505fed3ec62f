"""What this machine has, what it lacks, and the command that mends it: `attnbook doctor`. Imports neither PyTorch nor
the DSL."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbook.ladder import LADDER
from attnbook.machine import Machine, detect, torch_cuda_version, version_of

__all__ = ["Check", "Diagnosis", "diagnose"]

SCHEMA = "attnbook.doctor/1"
PYTHON = (3, 11)
NEEDED = ("nvidia-cutlass-dsl", "torch", "numpy", "tqdm")  # to run a kernel; the other pins are for the book
DRIVER_CUDA = 13  # what the kernels' CUBINs ask of a driver on a GPU
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    state   "ok"; "note": works without, or only a part needs it; "missing": kernels do not run without it
    found   what is there
    remedy  the command that mends it; empty when there is nothing to mend
    """

    name: str
    state: str
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and the machine they were made on."""

    machine: Machine
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Nothing that a kernel needs is missing."""
        return all(check.state != "missing" for check in self.checks)

    def report(self) -> str:
        """A line for each check, remedies under the line they belong to, and what to do next."""
        lines = [f"{'':<9}{self.machine.describe()}".replace("\n", f"\n{'':<9}").lstrip(), ""]
        width = max(len(check.name) for check in self.checks)
        for check in self.checks:
            lines.append(f"{check.state:<8} {check.name:<{width}}  {check.found}")
            if check.remedy:
                lines.append(f"{'':<8} {'':<{width}}  mend it with: {check.remedy}")
        lines.append("")
        root = checkout()
        if root is not None and sum(" -m pip install " in check.remedy for check in self.checks) > 1:
            lines.append(f"All packages at once: {_pip('-r', str(root / 'requirements.txt'))}")
        if self.ok:
            lines.append("Kernels run here. Try: attnbook run --stage 1 --batch 1 --heads 2 --seqlen 512")
        else:
            missing = ", ".join(check.name for check in self.checks if check.state == "missing")
            lines.append(f"Kernels do not run here yet. Missing: {missing}.")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "backend": self.machine.backend,
            "machine": self.machine.to_dict(),
            "stages": [stage.slug for stage in LADDER.implemented],
            "checks": [asdict(check) for check in self.checks],
        }


def diagnose() -> Diagnosis:
    """Look at everything. Takes well under a second."""
    machine = detect()
    checks = (_python(), *_packages(), _dsl_libraries(), _nvdisasm(), _gpu(machine), _backend(machine), *_browser())
    return Diagnosis(machine, checks)


def checkout() -> Path | None:
    """The folder with requirements.txt that this package lies in; None where it is installed without the book."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "requirements.txt").is_file() and (parent / "pyproject.toml").is_file():
            return parent
    return None


def pins() -> dict[str, str]:
    """{package: version} that requirements.txt pins. Empty where the book is not there."""
    root = checkout()
    if root is None:
        return {}
    lines = (root / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = (re.fullmatch(r"\s*([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;#]+).*", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _pip(*what: str) -> str:
    return f"{sys.executable} -m pip install " + " ".join(what)


def _python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info >= PYTHON:
        return Check("Python", "ok", found)
    least = ".".join(str(part) for part in PYTHON)
    return Check("Python", "missing", f"{found}; {least} or newer is needed", f"sudo apt-get install python{least}")


def _packages() -> Iterator[Check]:
    wanted = dict.fromkeys(NEEDED, "") | pins()
    for package, version in wanted.items():
        found = version_of(package)
        remedy = _pip(f"{package}[cu13]" if package == "nvidia-cutlass-dsl" else package)
        remedy = f'{remedy.rsplit(" ", 1)[0]} "{remedy.rsplit(" ", 1)[1]}{"==" + version if version else ""}"'
        if found is None:
            needed = package in NEEDED
            what = "not installed" + ("" if needed else "; building the book needs it")
            yield Check(package, "missing" if needed else "note", what, remedy)
        elif version and found.split("+")[0] != version:
            yield Check(package, "note", f"{found}; the book is written and tested with {version}", remedy)
        else:
            yield Check(package, "ok", found)


def _dsl_libraries() -> Check:
    name, package = "CUDA 13 libraries", "nvidia-cutlass-dsl-libs-cu13"
    found = version_of(package)
    if found:
        return Check(name, "ok", f"{package} {found}")
    version = version_of("nvidia-cutlass-dsl") or pins().get("nvidia-cutlass-dsl", "")
    remedy = _pip(f'"nvidia-cutlass-dsl[cu13]{"==" + version if version else ""}"')
    return Check(name, "note", "of CuTe-DSL: not installed; the CUDA 12 ones emit older PTX", remedy)


def _nvdisasm() -> Check:
    from attnbook.compile import _nvdisasm as find

    try:
        return Check("nvdisasm", "ok", find())
    except FileNotFoundError:
        return Check("nvdisasm", "note", "not found; SASS cannot be shown without it", _pip("nvidia-cuda-nvdisasm"))


def _gpu(machine: Machine) -> Check:
    if not machine.gpus:
        found = "none" if machine.driver is None else f"none that driver {machine.driver} shows"
        return Check("NVIDIA GPU", "ok", f"{found}; not needed")
    found = "; ".join(str(gpu) for gpu in machine.gpus) + f"; driver {machine.driver}, CUDA {machine.cuda}"
    useful = any(gpu.kind in {stage.machine for stage in LADDER.implemented} for gpu in machine.gpus)
    if useful and torch_cuda_version() is None:
        version = pins().get("torch")
        remedy = _pip("--force-reinstall", f"torch=={version}" if version else "torch")
        return Check("NVIDIA GPU", "note", f"{found}; PyTorch here is built without CUDA", remedy)
    if useful and machine.cuda and int(machine.cuda.split(".")[0]) < DRIVER_CUDA:
        remedy = "sudo apt-get install nvidia-driver-580-open"
        return Check("NVIDIA GPU", "note", f"{found}; the driver is older than CUDA {DRIVER_CUDA}", remedy)
    return Check("NVIDIA GPU", "ok", found)


def _backend(machine: Machine) -> Check:
    stages = ", ".join(f"{stage.number} {stage.slug}" for stage in LADDER.implemented)
    what = "ptxemu, the emulator" if machine.gpu is None else machine.gpu.name
    return Check("backend", "ok", f"{what} runs {machine.arch} kernels; stages here: {stages}")


def _browser() -> Iterator[Check]:
    apt = "sudo apt-get install chromium chromium-driver"
    for name, programs in (("Chromium", BROWSERS), ("chromedriver", ("chromedriver",))):
        found = next(filter(None, map(shutil.which, programs)), None)
        if found:
            yield Check(name, "ok", found)
        else:
            yield Check(name, "note", "not found; only the browser tests of `make test` need it", apt)
