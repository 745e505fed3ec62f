"""What machine this is, and which backend runs the kernels on it. Needs no GPU, no driver and no PyTorch.

    detect().backend     "blackwell": the kernels run on the GPU;  "hopper": likewise, the sm_90a ones;  "emulator":
    ptxemu runs them detect().describe()  two lines of text

The driver is asked through its C interface (libcuda.so.1), which creates no context and takes milliseconds.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Gpu", "Machine", "detect", "torch_cuda_version", "version_of"]

# Compute capability -> what the kernels are compiled for. 12.x (RTX 50) has no tcgen05, so no kernel here runs on it.
BLACKWELL = {(10, 0): "sm_100a", (10, 3): "sm_103a"}
HOPPER = {(9, 0): "sm_90a"}


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU that the driver shows. index: its CUDA device number; capability: (major, minor); memory in
    bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int

    @property
    def kind(self) -> str:
        """ "blackwell", "hopper", or "other"."""
        if self.capability in BLACKWELL:
            return "blackwell"
        return "hopper" if self.capability in HOPPER else "other"

    @property
    def arch(self) -> str | None:
        """What a kernel for this GPU is compiled for; None if none here is."""
        return (BLACKWELL | HOPPER).get(self.capability)

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name} (compute capability {major}.{minor}, {self.memory / 2**30:.0f} GiB)"


@dataclass(frozen=True)
class Machine:
    """This machine.

    backend   what runs the kernels: "blackwell", "hopper" or "emulator"
    arch      what they are compiled for there
    gpu       the GPU that runs them; None with the emulator
    gpus      all NVIDIA GPUs that the driver shows
    driver    the driver's version, such as "580.82.07"; None without one
    cuda      the newest CUDA that the driver knows, such as "13.0"; None without a driver
    why       why it is this backend, in a sentence
    """

    backend: str
    arch: str
    gpu: Gpu | None
    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda: str | None
    why: str
    cpu: str
    cores: int
    system: str
    python: str

    def describe(self) -> str:
        """Two lines: what runs the kernels, and the versions."""
        if self.gpu is not None:
            first = f"{self.gpu}, driver {self.driver}, CUDA {self.cuda}: {self.arch} kernels run on it"
        else:
            first = f"ptxemu, the emulator, runs the {self.arch} kernels ({self.why})"
        names = {"torch": "PyTorch", "nvidia-cutlass-dsl": "CuTe-DSL", "numpy": "NumPy"}
        versions = [f"{shown} {version_of(package)}" for package, shown in names.items() if version_of(package)]
        return f"{first}\nPython {self.python}, {', '.join(versions)}; {self.cpu}, {self.cores} cores"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@functools.cache
def detect() -> Machine:
    """Look at the machine, once. Never fails for want of a GPU or a driver."""
    driver = _Driver.load()
    gpus = driver.gpus() if driver else ()
    backend, arch, gpu, why = _choose(gpus, driver)
    return Machine(
        backend=backend,
        arch=arch,
        gpu=gpu,
        gpus=gpus,
        driver=_driver_version(),
        cuda=driver.cuda_version() if driver else None,
        why=why,
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


def _choose(gpus: tuple[Gpu, ...], driver: _Driver | None) -> tuple[str, str, Gpu | None, str]:
    """(backend, arch, GPU, why)."""
    from attnbook.ladder import LADDER

    written = {stage.machine for stage in LADDER.implemented}
    for gpu in gpus:
        if gpu.kind in written and gpu.arch:
            if torch_cuda_version() is None:
                return "emulator", "sm_100a", None, f"there is one {gpu.name}, but this PyTorch is built without CUDA"
            return gpu.kind, gpu.arch, gpu, f"there is one {gpu.name}"
    if gpus:
        return "emulator", "sm_100a", None, f"no kernel here runs on the {gpus[0].name}"
    if driver is None:
        return "emulator", "sm_100a", None, "no NVIDIA driver here"
    return "emulator", "sm_100a", None, "the NVIDIA driver shows no GPU"


class _Driver:
    """The few calls of the CUDA driver interface that are needed."""

    NAME_BYTES = 256
    MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @classmethod
    def load(cls) -> _Driver | None:
        for name in ("libcuda.so.1", "nvcuda.dll"):
            try:
                library = ctypes.CDLL(name)
            except OSError:
                continue
            return cls(library) if library.cuInit(0) == 0 else None
        return None

    def cuda_version(self) -> str | None:
        value = ctypes.c_int()
        if self.library.cuDriverGetVersion(ctypes.byref(value)):
            return None
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def gpus(self) -> tuple[Gpu, ...]:
        count = ctypes.c_int()
        if self.library.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        return tuple(gpu for index in range(count.value) if (gpu := self._gpu(index)))

    def _gpu(self, index: int) -> Gpu | None:
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(self.NAME_BYTES), ctypes.c_size_t()
        major, minor = ctypes.c_int(), ctypes.c_int()
        total = getattr(self.library, "cuDeviceTotalMem_v2", None)
        failed = (
            self.library.cuDeviceGet(ctypes.byref(device), index)
            or self.library.cuDeviceGetName(name, self.NAME_BYTES, device)
            or self.library.cuDeviceGetAttribute(ctypes.byref(major), self.MAJOR, device)
            or self.library.cuDeviceGetAttribute(ctypes.byref(minor), self.MINOR, device)
            or (total is not None and total(ctypes.byref(memory), device))
        )
        return None if failed else Gpu(index, name.value.decode(), (major.value, minor.value), memory.value)


def _driver_version() -> str | None:
    """The driver's own version, from the kernel module, or from NVML where that file is not shown."""
    try:
        found = re.search(
            r"(?:Kernel Module|x86_64|aarch64)\s+(\d+(?:\.\d+)+)", Path("/proc/driver/nvidia/version").read_text()
        )
        if found:
            return found[1]
    except OSError:
        pass
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    text = ctypes.create_string_buffer(96)
    failed = nvml.nvmlSystemGetDriverVersion(text, 96)
    nvml.nvmlShutdown()
    return None if failed else text.value.decode()


def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """The installed version of a distribution; None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda_version() -> str | None:
    """The CUDA that the installed PyTorch is built with, such as "13.0"; None for a CPU build, or without PyTorch.

    Reads torch/version.py and does not import PyTorch, which takes a second and more.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.M)
    return found[1] if found else None
