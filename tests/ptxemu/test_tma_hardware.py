"""Bulk tensor copies against what a GPU did: 172 recorded copies, and 450 tensor maps that the driver API encoded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ptxemu.errors import IllegalInstruction, MemoryFault
from ptxemu.isa import swizzle as sw
from ptxemu.isa import tmabox
from ptxemu.isa.tensormap import TensorMap, tensor_map

DATA = Path(__file__).parent / "data"
COPIES = json.loads((DATA / "tma.json").read_text())["rows"]
MAPS = json.loads((DATA / "tensormaps.json").read_text())["rows"]

# The driver's enumerations: CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
TYPES = ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "f32", "f32.ftz"]
TF32 = (11, 12)
SWIZZLES = [sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B]
PROMOTION = [0, 64, 128, 256]

GLOBAL_BYTES, SHARED_BYTES = 1 << 20, 1 << 16
# FP32 patterns at the edges of TF32 rounding: ties, denormals, infinities, NaNs. The recorder used the same.
FLOATS = [
    0x3F801000, 0x3F803000, 0x3F802FFF, 0x3F801001, 0x3F800FFF, 0xBF801000, 0xBF803000, 1, 0x7FFFFF, 0x1000, 0x3000,
    0x2FFF, 0x80000001, 0x80001000, 0x7F800000, 0xFF800000, 0x7F7FF000, 0x7F7FEFFF, 0xFF7FFFFF, 0x7F800001, 0xFFC00000,
    0x7FFFFFFF, 0x7F7FFFFF, 0x801000, 0x7FF000, 0x800FFF, 0, 0x80000000, 0x3F800000, 0x42F6E979, 0xC2F6E979, 0x7FC00000,
]  # fmt: skip


def noise(n: int, seed: int) -> np.ndarray:
    """The recorder's memory contents: a fixed hash of the index."""
    x = (np.arange(n, dtype=np.uint64) + np.uint64(seed * 7919)) * np.uint64(2654435761)
    return ((x >> np.uint64(13)) & np.uint64(255)).astype(np.uint8)


def digest(memory: np.ndarray) -> str:
    return hashlib.sha256(memory.tobytes()).hexdigest()[:32]


def build(row: dict) -> TensorMap:
    return tensor_map(
        row["address"],
        TYPES[row["type"]],
        tuple(row["sizes"]),
        tuple(row["strides"]),
        tuple(row["box"]),
        element_strides=tuple(row["element_strides"]),
        swizzle=SWIZZLES[row["swizzle"]],
        fill="nan" if row["oob"] else "zero",
        tf32=row["type"] in TF32,
    )


def name(row: dict) -> str:
    way = "store" if row["store"] else "load"
    return (
        f"{way}-{TYPES[row['type']]}-{SWIZZLES[row['swizzle']].name}-box{row['box']}-at{row['coords']}-{row['shared']}"
    )


@pytest.mark.parametrize("row", COPIES, ids=name)
def test_copy_as_on_the_gpu(row: dict) -> None:
    tensor = build(row)
    if row["error"]:
        expected = {715: IllegalInstruction, 716: MemoryFault}[row["error"]]
        with pytest.raises(expected):
            tmabox.check(tensor, row["coords"], row["shared"], store=row["store"])
        return
    tmabox.check(tensor, row["coords"], row["shared"], store=row["store"])
    memory, shared = noise(GLOBAL_BYTES, 1), noise(SHARED_BYTES, 2)
    if row["pattern"] == "floats":
        memory[row["address"] :][:1024] = np.tile(np.array(FLOATS, np.uint32), 8).view(np.uint8)
    inner = tensor.box[0] * tensor.itemsize

    def window(address: int, length: int) -> np.ndarray:
        return memory[address : address + length]

    if row["store"]:
        box = tmabox.take(shared, row["shared"], tensor.box_bytes, inner, tensor.swizzle)
        tmabox.scatter(tensor, row["coords"], window, box)
    else:
        tmabox.put(shared, row["shared"], tmabox.gather(tensor, row["coords"], window), inner, tensor.swizzle)
        # complete_tx counts the whole box: only that number of expected bytes ends the phase.
        assert row["completed"] == (row["expect"] == tensor.box_bytes)
    assert digest(shared) == row["shared_after"]
    assert digest(memory) == row["global_after"]


@pytest.mark.parametrize("i", range(0, len(MAPS), 11))
def test_maps_of_the_driver_decode_to_its_arguments(i: int) -> None:
    for row in MAPS[i : i + 11]:
        raw = bytes.fromhex(row["bytes"]) + bytes(64)
        if row["interleave"]:
            with pytest.raises(Exception, match="interleave"):
                TensorMap.decode(raw)
            continue
        m = TensorMap.decode(raw)
        item = m.itemsize
        assert (m.address, m.element, m.sizes) == (row["address"], TYPES[row["type"]], tuple(row["sizes"]))
        assert m.strides == (item, *row["strides"])
        assert (m.box, m.element_strides) == (tuple(row["box"]), tuple(row["element_strides"]))
        assert (m.swizzle, m.l2_promotion) == (SWIZZLES[row["swizzle"]], PROMOTION[row["l2"]])
        assert (m.fill, m.tf32) == ("nan" if row["oob"] else "zero", row["type"] in TF32)
        assert m.encode() == raw
