"""`run_ptx`: a kernel given as PTX text, with arguments in Python's own terms."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import ptx
from .config import Config, Run
from .machine import Allocation, launch_module

_modules: dict[str, ptx.Module] = {}


def run_ptx(
    text: str,
    *,
    entry: str | None = None,
    grid: Sequence[int] = (1, 1, 1),
    block: Sequence[int],
    args: Sequence[bytes | int | float | np.ndarray] = (),
    cluster: Sequence[int] | None = None,
    shared: int = 0,
    config: Config | None = None,
) -> Run:
    """Run a kernel of a PTX module.

    args, one for each parameter: an array passes the address of its buffer, which the kernel may then read and write
    (read-only arrays only read);
    ints and floats are packed to the parameter's size; bytes are taken as they are.
    grid, block, cluster: up to three dimensions. shared: bytes of dynamic shared memory.
    Raises ValueError for arguments that do not fit the kernel, and the errors of ptxemu.errors for what the kernel
    does.
    """
    module = _modules.get(text)
    if module is None:
        if len(_modules) > 16:
            _modules.clear()
        module = _modules[text] = ptx.parse(text)
    kernel = module.entry(entry)
    if len(args) != len(kernel.params):
        raise ValueError(f"{kernel.name} takes {len(kernel.params)} parameters, {len(args)} were given")
    params, allocations = [], []
    for i, (value, p) in enumerate(zip(args, kernel.params.values(), strict=True)):
        if isinstance(value, np.ndarray):
            if not (value.flags.c_contiguous or value.flags.f_contiguous):
                raise ValueError(
                    f"argument {i} ({p.name}): the array must be contiguous; pass numpy.ascontiguousarray(x)"
                )
            allocations.append(Allocation(f"argument {i}", value.ctypes.data, value.nbytes, value.flags.writeable))
        params.append(_pack(value, p, i))
    return launch_module(
        module,
        kernel.name,
        grid=grid,
        block=block,
        cluster=cluster,
        shared=shared,
        params=params,
        allocations=allocations,
        config=config,
        keep=args,
    )


def _pack(value: Any, p: ptx.Param, i: int) -> bytes:
    if isinstance(value, bytes | bytearray):
        data = bytes(value)
    elif isinstance(value, np.ndarray):
        data = value.ctypes.data.to_bytes(8, "little")
    elif isinstance(value, float | np.floating):
        data = struct.pack({2: "<e", 4: "<f", 8: "<d"}.get(p.size, "<d"), value)
    elif isinstance(value, int | np.integer):
        data = (int(value) & (1 << 8 * p.size) - 1).to_bytes(p.size, "little")
    else:
        raise ValueError(
            f"argument {i} ({p.name}) is a {type(value).__name__}: pass bytes, an int, a float or a NumPy array"
        )
    if len(data) != p.size:
        raise ValueError(f"argument {i} ({p.name}) has {len(data)} bytes, the parameter has {p.size}")
    return data
