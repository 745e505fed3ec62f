"""Record what a Hopper GPU answers to tests/ptxemu/hopper_cases.py: python tests/gpu/record_hopper.py FILE.json.

Needs NumPy, pytest and a driver; no CUDA toolkit.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "ptxemu"), str(Path(__file__).parents[2] / "src")]
from hopper_cases import answers  # noqa: E402


def main() -> None:
    lib = c.CDLL("libcuda.so.1")

    def call(name: str, *args: Any) -> None:
        error = getattr(lib, name)(*args)
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    device, context, name = c.c_int(), c.c_void_p(), c.create_string_buffer(96)
    call("cuInit", 0)
    call("cuDeviceGet", c.byref(device), 0)
    call("cuDeviceGetName", name, 96, device)
    call("cuCtxCreate_v2", c.byref(context), 0, device)

    def gpu(text: str, *, block: tuple[int], args: list, shared: int = 0, config: Any = None) -> None:
        entry = text.split(".entry ")[1].split("(")[0].encode()
        places = []
        for x in args:
            place = c.c_uint64()
            call("cuMemAlloc_v2", c.byref(place), c.c_size_t(max(x.nbytes, 4)))
            if x.nbytes:
                call("cuMemcpyHtoD_v2", place, c.c_void_p(x.ctypes.data), c.c_size_t(x.nbytes))
            places.append(place)
        module, function = c.c_void_p(), c.c_void_p()
        call("cuModuleLoadData", c.byref(module), text.encode())
        call("cuModuleGetFunction", c.byref(function), module, entry)
        pointers = (c.c_void_p * len(places))(*[c.addressof(p) for p in places])
        call("cuLaunchKernel", function, 1, 1, 1, block[0], 1, 1, shared, None, pointers, None)
        call("cuCtxSynchronize")
        for x, place in zip(args, places, strict=True):
            if x.nbytes:
                call("cuMemcpyDtoH_v2", c.c_void_p(x.ctypes.data), place, c.c_size_t(x.nbytes))

    record = {"machine": name.value.decode(), "answers": answers(gpu)}
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
