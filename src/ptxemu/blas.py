"""Keep NumPy's matrix multiplication on one thread while the emulator runs.

One MMA is a small product. Handing it to several threads costs more than it gains, and very much more when other
programs use the cores.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@functools.cache
def _controls() -> tuple[Callable[[int], object], Callable[[], int]] | None:
    """(set, get) of the number of threads of the OpenBLAS that NumPy's wheels bring along; None where it is another
    library.
    """
    root = Path(np.__file__).parent
    places = [root.parent / "numpy.libs", root / ".dylibs", root.parent / "scipy_openblas64" / "lib"]
    for library in (x for place in places if place.is_dir() for x in place.glob("*openblas*")):
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError:
            continue
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            try:
                return (
                    getattr(loaded, f"{prefix}openblas_set_num_threads{suffix}"),
                    getattr(loaded, f"{prefix}openblas_get_num_threads{suffix}"),
                )
            except AttributeError:
                continue
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this context NumPy multiplies matrices on one thread, where that can be set."""
    controls = _controls()
    if controls is None:
        yield
        return
    put, get = controls
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)
