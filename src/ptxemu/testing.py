"""Try a few lines of PTX: registers in, registers out. For tests, and for anyone who wants to see what an instruction
does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .config import Config
from .run import run_ptx

_REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def run_lines(
    body: str,
    inputs: Mapping[str, np.ndarray] | None = None,
    outputs: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    declare: str = "",
    config: Config | None = None,
) -> dict[str, np.ndarray]:
    """Run `body` in one CTA, one thread for each element of the inputs.

    inputs: name -> 1-D array; thread i finds element i in register %name (16, 32 or 64 bits wide; bool: a predicate).
    outputs: name -> dtype; what register %name holds at the end, for every thread. declare: more declarations for the
    kernel.
    threads: of the CTA, where there are no inputs to count (default 32).
    """
    inputs, outputs = dict(inputs or {}), dict(outputs or {})
    count = threads or max((len(x) for x in inputs.values()), default=32)
    arrays: list[np.ndarray] = []
    head, tail = [], []
    names = [f"__p{i}" for i in range(len(inputs) + len(outputs))]
    registers = {name: np.dtype(array.dtype) for name, array in inputs.items()}
    registers |= {name: np.dtype(dtype) for name, dtype in outputs.items()}
    for name, dtype in registers.items():
        head.append(f".reg .{'pred' if dtype == np.bool_ else _REGISTER[dtype.itemsize]} %{name};")
    for i, (name, array) in enumerate(inputs.items()):
        values = np.ascontiguousarray(array)
        width = 8 * values.itemsize
        head += [f"ld.param.u64 %__a, [{names[i]}];", f"mad.wide.u32 %__a, %__t, {values.itemsize}, %__a;"]
        if values.dtype == np.bool_:
            head += ["ld.global.u8 %__h, [%__a];", f"setp.ne.u16 %{name}, %__h, 0;"]
        else:
            head.append(f"ld.global.b{width} %{name}, [%__a];")
        arrays.append(values)
    for i, (name, kind) in enumerate(outputs.items(), len(inputs)):
        dtype = np.dtype(kind)
        result = np.zeros(count, dtype)
        tail += [f"ld.param.u64 %__a, [{names[i]}];", f"mad.wide.u32 %__a, %__t, {result.itemsize}, %__a;"]
        if dtype == np.bool_:
            tail += [f"selp.u16 %__h, 1, 0, %{name};", "st.global.b8 [%__a], %__h;"]
        else:
            tail.append(f"st.global.b{8 * result.itemsize} [%__a], %{name};")
        arrays.append(result)
    params = ", ".join(f".param .u64 {name}" for name in names)
    lines = [
        ".version 9.0", ".target sm_100a", ".address_size 64", f".visible .entry lines({params}) {{",
        ".reg .b64 %__a;", ".reg .b32 %__t;", ".reg .b16 %__h;", "mov.u32 %__t, %tid.x;",
        *head, declare, body, *tail, "ret;", "}",
    ]  # fmt: skip
    run_ptx("\n".join(lines), block=(count,), args=arrays, config=config)
    return dict(zip(outputs, arrays[len(inputs) :], strict=True))
