"""Register files as structures of arrays: register r of every resident warp is one NumPy array.

A file holds all registers of one width, indexed [slot, warp in CTA, resident CTA, lane]. A bundle of warps is a
rectangle of the two middle axes, so that each of its registers is a plain view and one NumPy call serves every warp of
the bundle. Views are made when first used and kept. In memory the registers of a warp lie side by side: neighbouring
ones are used together, and rows of one register, a power of two apart, would all fall into the same sets of a cache.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np

Rect = tuple[slice, slice]

_DTYPES: dict[int, Any] = {1: np.bool_, 16: np.uint16, 32: np.uint32, 64: np.uint64}

# view name -> (bits of the file, dtype, form): "plain" [.., 32]; "pair" [.., 32, 2]; "lo"/"hi" every other element,
# [.., 32]
FORMS: dict[str, tuple[int, Any, str]] = {
    "pred": (1, np.bool_, "plain"),
    "u16": (16, np.uint16, "plain"),
    "s16": (16, np.int16, "plain"),
    "f16": (16, np.float16, "plain"),
    "u32": (32, np.uint32, "plain"),
    "s32": (32, np.int32, "plain"),
    "f32": (32, np.float32, "plain"),
    "u16x2": (32, np.uint16, "pair"),
    "f16x2": (32, np.float16, "pair"),
    "u64": (64, np.uint64, "plain"),
    "s64": (64, np.int64, "plain"),
    "f64": (64, np.float64, "plain"),
    "lo32": (64, np.uint32, "lo"),
    "hi32": (64, np.uint32, "hi"),
    "f32x2": (64, np.float32, "pair"),
    "u32x2": (64, np.uint32, "pair"),
    "u128": (128, np.uint64, "plain"),  # [.., 32, 2]: low half, high half
}
RAW = {1: "pred", 16: "u16", 32: "u32", 64: "u64", 128: "u128"}


def _typed(raw: np.ndarray, dtype: Any, form: str, bits: int) -> np.ndarray:
    if bits in (1, 128):
        return raw
    view = raw.view(dtype)
    if form == "plain":
        return view
    return {"pair": view.reshape(*raw.shape, 2), "lo": view[..., 0::2], "hi": view[..., 1::2]}[form]


class RegisterFiles:
    """All registers of the resident grid, as typed arrays [slot, warp, CTA, lane(, 2)].

    `dirty`: they hold what an earlier launch left. Fresh memory is zero, but costs more than the launch of a small
    kernel when its pages are touched first; so the arrays of the last launch are kept, if they are not too large.
    """

    KEPT = 64 << 20  # bytes
    _spare: ClassVar[list[tuple[Any, dict[int, np.ndarray]]]] = []

    def __init__(self, slots: dict[int, int], warps: int, ctas: int) -> None:
        self.key = (tuple(sorted(slots.items())), warps, ctas)
        self.raw: dict[int, np.ndarray] = {}
        try:
            key, self.raw = self._spare.pop()
        except IndexError:
            key = None
        self.dirty = key == self.key
        if not self.dirty:
            self.raw = self._fresh(slots, warps, ctas)
        self.typed = {name: _typed(self.raw[bits], dtype, form, bits) for name, (bits, dtype, form) in FORMS.items()}

    def release(self) -> None:
        """Nobody needs them any more."""
        if sum(raw.nbytes for raw in self.raw.values()) <= self.KEPT:
            self._spare[:] = [(self.key, self.raw)]

    @staticmethod
    def _fresh(slots: dict[int, int], warps: int, ctas: int) -> dict[int, np.ndarray]:
        arrays = {}
        for bits, count in slots.items():
            shape: tuple[int, ...] = (warps, max(count, 1), ctas, 32)
            by_warp = np.zeros((*shape, 2), np.uint64) if bits == 128 else np.zeros(shape, _DTYPES[bits])
            arrays[bits] = by_warp.swapaxes(0, 1)
        return arrays


class Rows:
    """Many registers of a file in the place of one: `view.u32[rows]` has an axis more, in front.

    In even steps (step > 0) that is a view. Else it is only to be read: the same register for all (step 0), again a
    view, or a copy by an index array (step -1).
    """

    __slots__ = ("count", "index", "step")

    count: int
    index: slice | np.ndarray
    step: int
    _known: ClassVar[dict[tuple[int, ...], Rows]] = {}

    @classmethod
    def of(cls, slots: tuple[int, ...]) -> Rows:
        """The rows of these slots, in this order; equal ones are the same object."""
        found = cls._known.get(slots)
        if found is None:
            if len(cls._known) > 50_000:
                cls._known.clear()
            found = cls._known[slots] = cls()
            first, found.count = slots[0], len(slots)
            steps = {b - a for a, b in itertools.pairwise(slots)}
            found.step = steps.pop() if len(steps) == 1 else 1 if len(slots) == 1 else -1
            if found.step > 0:
                found.index = slice(first, slots[-1] + 1, found.step)
            elif found.step == 0:
                found.index = slice(first, first + 1)
            else:
                found.step, found.index = -1, np.array(slots)
        return found


class Views(dict):
    """slot (or Rows) -> array of one bundle; made on first use."""

    __slots__ = ("array", "rect")

    def __init__(self, array: np.ndarray, rect: Rect) -> None:
        self.array, self.rect = array, rect

    def __missing__(self, slot: int | Rows) -> np.ndarray:
        if isinstance(slot, int):
            view = self[slot] = self.array[(slot, *self.rect)]
            return view
        view = self.array[(slot.index, *self.rect)]
        if slot.step < 0:
            return view  # what is there now, and therefore not kept
        if slot.step == 0:
            view = np.broadcast_to(view, (slot.count, *view.shape[1:]))
        self[slot] = view
        return view


class ScratchViews(dict):
    """slot -> scratch array with the shape of the bundle, shared by all typed views of the same slot."""

    __slots__ = ("bits", "dtype", "form", "raw", "shape")

    def __init__(
        self, raw: dict[tuple[int, int], np.ndarray], shape: tuple[int, ...], bits: int, dtype: Any, form: str
    ) -> None:
        self.raw, self.shape, self.bits, self.dtype, self.form = raw, shape, bits, dtype, form

    def __missing__(self, slot: int) -> np.ndarray:
        raw = self.raw.get((self.bits, slot))
        if raw is None:
            shape = (*self.shape, 2) if self.bits == 128 else self.shape
            raw = self.raw[self.bits, slot] = np.zeros(shape, _DTYPES.get(self.bits, np.uint64))
        view = self[slot] = _typed(raw, self.dtype, self.form, self.bits)
        return view


class View:
    """The typed names under which the registers of a bundle are read or written: `view.u32[slot]`, `view.f32x2[slot]`
    ...
    """

    __slots__ = tuple(FORMS)

    pred: dict[int, np.ndarray]
    u16: dict[int, np.ndarray]
    s16: dict[int, np.ndarray]
    f16: dict[int, np.ndarray]
    u32: dict[int, np.ndarray]
    s32: dict[int, np.ndarray]
    f32: dict[int, np.ndarray]
    u16x2: dict[int, np.ndarray]
    f16x2: dict[int, np.ndarray]
    u64: dict[int, np.ndarray]
    s64: dict[int, np.ndarray]
    f64: dict[int, np.ndarray]
    lo32: dict[int, np.ndarray]
    hi32: dict[int, np.ndarray]
    f32x2: dict[int, np.ndarray]
    u32x2: dict[int, np.ndarray]
    u128: dict[int, np.ndarray]


class Scratch(View):
    """Where a masked instruction writes, before its active lanes are copied to the registers."""

    __slots__ = ("raw",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.raw: dict[tuple[int, int], np.ndarray] = {}
        for name, (bits, dtype, form) in FORMS.items():
            setattr(self, name, ScratchViews(self.raw, shape, bits, dtype, form))
