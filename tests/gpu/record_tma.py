"""Record what the bulk copy unit of a GPU does, for tests/ptxemu/test_tma_hardware.py.

    python tests/gpu/record_tma.py tests/ptxemu/data

Needs an NVIDIA GPU of compute capability 9.0 or later and its driver (libcuda), NumPy, and nothing else. Writes
tensormaps.json (arguments of cuTensorMapEncodeTiled and the bytes it made) and tma.json (copies between a tensor and
shared memory: what the memories held afterwards, and which copies the hardware refuses). A copy that faults spoils its
process, so every batch of copies runs in a process of its own, up to the first fault.
"""

from __future__ import annotations

import ctypes as c
import datetime
import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

GLOBAL_BYTES, SHARED_BYTES = 1 << 20, 1 << 16
ITEM = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4]  # bytes, by CUtensorMapDataType
U8, U16, U32, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ = 0, 1, 2, 6, 7, 8, 9, 10, 11, 12
FLOATS = [
    0x3F801000, 0x3F803000, 0x3F802FFF, 0x3F801001, 0x3F800FFF, 0xBF801000, 0xBF803000, 1, 0x7FFFFF, 0x1000, 0x3000,
    0x2FFF, 0x80000001, 0x80001000, 0x7F800000, 0xFF800000, 0x7F7FF000, 0x7F7FEFFF, 0xFF7FFFFF, 0x7F800001, 0xFFC00000,
    0x7FFFFFFF, 0x7F7FFFFF, 0x801000, 0x7FF000, 0x800FFF, 0, 0x80000000, 0x3F800000, 0x42F6E979, 0xC2F6E979, 0x7FC00000,
]  # fmt: skip

LOAD = """
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], %expect;
    cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes [%box], [%map, {{{coords}}}],
    [%bar]; mov.u32 %n, 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;
    @%p bra COMPLETE;
    add.u32 %n, %n, 1;
    setp.lt.u32 %q, %n, 2000;
    @%q bra WAIT;
    st.global.u32 [%flag], 1;
    bra DONE;
COMPLETE:
    st.global.u32 [%flag], 2;
DONE:
"""
STORE = """
    cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [%map, {{{coords}}}], [%box];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
"""
# Fills shared memory from `before`, makes one copy, and brings shared memory out to `after`.
KERNEL = """
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry copy(
    .param .align 64 .b8 map[128], .param .align 4 .b8 coords[20], .param .u32 box, .param .u32 expect,
    .param .u64 before, .param .u64 after, .param .u64 flag)
{{
    .reg .b32 %c<5>, %box, %expect, %n, %t, %a, %v, %base, %bar;
    .reg .b64 %map, %before, %after, %flag, %x;
    .reg .pred %p, %q;
    {load_coords}
    mov.b64 %map, map;
    cvta.param.u64 %map, %map;
    ld.param.u32 %box, [box];
    ld.param.u32 %expect, [expect];
    ld.param.u64 %before, [before];
    ld.param.u64 %after, [after];
    ld.param.u64 %flag, [flag];
    cvta.to.global.u64 %before, %before;
    cvta.to.global.u64 %after, %after;
    cvta.to.global.u64 %flag, %flag;
    mov.u32 %base, sm;
    add.u32 %box, %box, %base;
    add.u32 %bar, %base, {shared};
    mov.u32 %t, %tid.x;
    shl.b32 %a, %t, 2;
FILL:
    cvt.u64.u32 %x, %a;
    add.u64 %x, %x, %before;
    ld.global.u32 %v, [%x];
    add.u32 %n, %a, %base;
    st.shared.u32 [%n], %v;
    add.u32 %a, %a, 512;
    setp.lt.u32 %p, %a, {shared};
    @%p bra FILL;
    setp.ne.u32 %q, %t, 0;
    @%q bra FILLED;
    mbarrier.init.shared::cta.b64 [%bar], 1;
FILLED:
    fence.proxy.async;
    bar.sync 0;
    @%q bra COPIED;
    {body}
COPIED:
    bar.sync 0;
    shl.b32 %a, %t, 2;
OUT:
    cvt.u64.u32 %x, %a;
    add.u64 %x, %x, %after;
    add.u32 %n, %a, %base;
    ld.shared.u32 %v, [%n];
    st.global.u32 [%x], %v;
    add.u32 %a, %a, 512;
    setp.lt.u32 %p, %a, {shared};
    @%p bra OUT;
    ret;
}}
"""


def noise(n: int, seed: int) -> np.ndarray:
    x = (np.arange(n, dtype=np.uint64) + np.uint64(seed * 7919)) * np.uint64(2654435761)
    return ((x >> np.uint64(13)) & np.uint64(255)).astype(np.uint8)


class Driver:
    """The few calls of the driver API that are needed, in the primary context of device 0."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libcuda.so.1")
        self("cuInit", 0)
        device, context = c.c_int(), c.c_void_p()
        self("cuDeviceGet", c.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self("cuCtxSetCurrent", context)
        name = c.create_string_buffer(64)
        self("cuDeviceGetName", name, 64, device)
        version = c.c_int()
        self("cuDriverGetVersion", c.byref(version))
        self.machine = f"{name.value.decode()}, driver API {version.value}"
        self.kernels: dict[tuple[int, bool], c.c_void_p] = {}

    def __call__(self, name: str, *args: object) -> None:
        code = getattr(self.lib, name)(*args)
        if code:
            raise RuntimeError(f"{name} returned {code}")

    def encode(self, row: dict) -> tuple[int, bytes]:
        """cuTensorMapEncodeTiled: (return code, 128 bytes)."""

        def array(kind: type, values: list[int]) -> c.Array:
            return (kind * max(1, len(values)))(*values)

        room = (c.c_uint64 * 32)()
        place = (c.addressof(room) + 63) // 64 * 64
        code = self.lib.cuTensorMapEncodeTiled(
            c.c_void_p(place), row["type"], len(row["sizes"]), c.c_void_p(row["address"]),
            array(c.c_uint64, row["sizes"]), array(c.c_uint64, row["strides"]), array(c.c_uint32, row["box"]),
            array(c.c_uint32, row["element_strides"]), row["interleave"], row["swizzle"], row["l2"], row["oob"],
        )  # fmt: skip
        return code, c.string_at(place, 128)

    def alloc(self, n: int) -> int:
        p = c.c_uint64()
        self("cuMemAlloc_v2", c.byref(p), c.c_size_t(n))
        return p.value

    def write(self, address: int, data: np.ndarray) -> None:
        self("cuMemcpyHtoD_v2", c.c_uint64(address), data.ctypes.data_as(c.c_void_p), c.c_size_t(data.nbytes))

    def read(self, address: int, n: int) -> np.ndarray:
        out = np.empty(n, np.uint8)
        self("cuMemcpyDtoH_v2", out.ctypes.data_as(c.c_void_p), c.c_uint64(address), c.c_size_t(n))
        return out

    def kernel(self, rank: int, store: bool) -> c.c_void_p:
        if (rank, store) not in self.kernels:
            coords = ", ".join(f"%c{i}" for i in range(rank))
            loads = "\n".join(f"ld.param.s32 %c{i}, [coords+{4 * i}];" for i in range(rank))
            body = (STORE if store else LOAD).format(rank=rank, coords=coords)
            text = KERNEL.format(load_coords=loads, body=body, shared=SHARED_BYTES)
            module, function = c.c_void_p(), c.c_void_p()
            self("cuModuleLoadData", c.byref(module), text.encode())
            self("cuModuleGetFunction", c.byref(function), module, b"copy")
            self("cuFuncSetAttribute", function, 8, SHARED_BYTES + 1024)  # maximum dynamic shared memory
            self.kernels[rank, store] = function
        return self.kernels[rank, store]


def tensor_maps() -> list[dict]:
    """Arguments for the encoder: every type and rank, every mode, then random ones."""
    rows: list[dict] = []

    def add(kind, sizes, strides, box, steps, interleave=0, swizzle=0, l2=0, oob=0, address=0x7F1234567000):  # type: ignore[no-untyped-def]
        rows.append(
            dict(
                type=kind, sizes=sizes, strides=strides, box=box, element_strides=steps, interleave=interleave,
                swizzle=swizzle, l2=l2, oob=oob, address=address,
            )
        )  # fmt: skip

    for kind in range(13):
        for n in range(1, 6):
            strides = [64 * ITEM[kind] * 64**i for i in range(n - 1)]
            add(kind, [64] * n, strides, [16 // ITEM[kind]] + [4] * (n - 1), [1] * n)
    for swizzle in range(4):
        for l2 in range(4):
            for oob in range(2):
                add(BF16, [512, 300], [1024], [16, 8], [1, 1], 0, swizzle, l2, oob)
    for interleave in range(3):
        for swizzle in range(4):
            box = [8 * max(interleave, 1), 4, 4, 2]
            add(F16, [16, 8, 8, 8], [512, 8192, 81920], box, [1] * 4, interleave, swizzle)
    rng = random.Random(7)
    for _ in range(400):
        kind, n = rng.choice([0, 1, 2, 3, 6, 7, 9, 9, 9, 10, 11, 12]), rng.randint(1, 5)
        add(
            kind,
            [rng.choice([1, 2, 7, 33, 64, 1000, 2**20 + 3, 2**32]) for _ in range(n)],
            [rng.choice([16, 48, 1024, 4096, 2**21, 2**31 + 16, 2**36 + 32, 2**40 - 16]) for _ in range(n - 1)],
            [16 // ITEM[kind] * rng.choice([1, 2, 4])] + [rng.choice([1, 2, 3, 8, 64, 255, 256]) for _ in range(n - 1)],
            [1] + [rng.choice([1, 1, 1, 2, 3, 8]) for _ in range(n - 1)],
            0,
            rng.choice([0, 0, 1, 2, 3, 3]),
            rng.randint(0, 3),
            rng.randint(0, 1) if kind > 5 else 0,
            rng.choice([0x7F1234567000, 0x10, 0x7FFFFFFFFFFF0, 0x200000000]),
        )
    return rows


def copies() -> list[dict]:
    """The copies to make."""
    rows: list[dict] = []
    wide = ([128, 64], [256])  # a tensor of 64 rows of 128 16-bit elements

    def add(
        tensor,
        box,
        coords,
        kind=BF16,
        shared=0,
        steps=None,
        swizzle=0,
        oob=0,
        store=False,
        expect=None,
        pattern="bytes",
    ):  # type: ignore[no-untyped-def]
        steps = steps or [1] * len(box)
        nbytes = ITEM[kind] * box[0]
        for b, s in zip(box[1:], steps[1:], strict=True):
            nbytes *= -(-b // s)
        rows.append(
            dict(
                type=kind, sizes=tensor[0], strides=tensor[1], box=box, coords=coords, shared=shared,
                element_strides=steps, swizzle=swizzle, oob=oob, store=store, address=4096,
                expect=nbytes if expect is None else expect, pattern=pattern,
            )
        )  # fmt: skip

    spans = ((0, 64), (1, 16), (2, 32), (3, 64))
    for swizzle, inner in spans:  # absolute addresses
        for shared in (0, 128, 256, 384, 512, 1152):
            add(wide, [inner, 16], [64, 3], shared=shared, swizzle=swizzle)
    for swizzle, inner in ((1, 8), (2, 8), (2, 16), (2, 24), (3, 8), (3, 16), (3, 24), (3, 32), (3, 48)):  # narrow rows
        add(wide, [inner, 16], [8, 3], swizzle=swizzle)
    edges = [[-8, -3], [-16, 0], [104, 60], [120, 63], [128, 0], [-64, 0], [-56, -15], [0, -16], [0, 64], [120, -2]]
    for at in [*edges, [-1000000, 5], [2147483640, 0], [-2147483648, -2147483648]]:  # out of bounds
        for oob in (0, 1):
            add(wide, [64, 16], at, swizzle=3, oob=oob)
    add(([124, 60], [256]), [64, 16], [88, 50], swizzle=3)
    add(([121, 60], [256]), [64, 16], [88, 50], oob=1)
    for kind in (U8, U16, U32, F16, F32, F64, BF16, F32_FTZ, TF32, TF32_FTZ):
        add(([30, 20], [256]), [64 // ITEM[kind], 8], [16, 15], kind, oob=int(kind > 5))
    for steps in ([1, 2], [1, 3], [2, 1], [1, 8], [4, 5]):  # traversal strides
        for at in ([0, 0], [8, -5], [104, 58], [0, -1]):
            add(wide, [32, 16], at, steps=steps)
    add(([128, 8, 8], [256, 2048]), [32, 4, 5], [8, -3, -2], steps=[1, 2, 3])
    add(([128, 8, 8], [256, 2048]), [32, 4, 5], [8, 1, 3], steps=[1, 3, 2])
    four, five = ([32, 8, 6, 5], [64, 1024, 8192]), ([32, 8, 6, 5, 3], [64, 1024, 8192, 65536])
    add(four, [16, 4, 3, 2], [8, -1, 2, 4], swizzle=1)
    add(five, [16, 4, 3, 2, 2], [8, -1, 2, 4, -1])
    add(five, [16, 4, 3, 2, 2], [24, 6, 2, 3, 2], swizzle=1)
    for at in ([968], [-8]):
        add(([1000], []), [64], at)
    add(([33, 8, 6], [128, 2048]), [64, 4, 3], [0, 3, 4], swizzle=3)
    for swizzle, inner in spans:  # stores
        for at in ([64, 3], [104, 60], [200, 5], [0, 60]):
            for shared in (0, 384):
                add(wide, [inner, 16], at, shared=shared, swizzle=swizzle, store=True)
    for swizzle, inner in ((1, 8), (2, 16), (3, 24), (3, 48)):
        add(wide, [inner, 16], [8, 3], swizzle=swizzle, store=True)
    for steps in ([1, 2], [1, 3], [2, 1]):
        for at in ([0, 0], [8, 50]):
            add(wide, [32, 16], at, steps=steps, store=True)
    add(([30, 8, 6, 5], [64, 1024, 8192]), [16, 4, 3, 2], [24, 6, 2, 4], store=True)  # rows that end inside a chunk
    add(([30, 20], [256]), [16, 8], [20, 15], F32, store=True)
    add(([121, 60], [256]), [64, 16], [88, 50], store=True)
    for at in ([0, -3], [-8, 0], [128, 64]):
        add(wide, [64, 16], at, store=True)
    for kind in (F32, TF32, F32_FTZ, TF32_FTZ):
        add(([64, 64], [256]), [32, 8], [0, 0], kind)
        add(([32, 8], [128]), [32, 8], [0, 0], kind, pattern="floats")
    add(wide, [64, 16], [-8, -3], swizzle=3, expect=2049)  # what complete_tx counts
    add(wide, [64, 16], [0, 0], swizzle=3, expect=2032)
    for at in ([3, 0], [4, 0], [-4, 0], [100, 60]):  # the box must start on a 16-byte boundary of its row
        add(wide, [64, 16], at)
        add(wide, [64, 16], at, store=True)
    add(wide, [64, 16], [8, 0], U8)
    add(([64, 64], [256]), [16, 8], [2, 0], F32)
    for shared in (16, 64):  # and its shared-memory address at a multiple of 128
        add(wide, [64, 8], [0, 0], shared=shared)
    add(wide, [64, 8], [0, 0], shared=64, swizzle=3)
    add(([1000], []), [64], [0], shared=16)
    add(wide, [64, 8], [0, 0], shared=64, store=True)
    return rows


def make_copies(rows: list[dict], path: Path) -> None:
    """Make copies up to the first that faults, and write the results."""
    gpu = Driver()
    tensor, before, after, flag = (gpu.alloc(n) for n in (GLOBAL_BYTES, SHARED_BYTES, SHARED_BYTES, 64))
    done = []
    for row in rows:
        code, encoded = gpu.encode({**row, "address": tensor + row["address"], "interleave": 0, "l2": 0})
        if code:
            raise RuntimeError(f"cannot encode {row}: {code}")
        memory = noise(GLOBAL_BYTES, 1)
        if row["pattern"] == "floats":
            memory[row["address"] :][:1024] = np.tile(np.array(FLOATS, np.uint32), 8).view(np.uint8)
        gpu.write(tensor, memory)
        gpu.write(before, noise(SHARED_BYTES, 2))
        gpu.write(flag, np.zeros(4, np.uint8))
        encoded_map, coords = (c.c_char * 128)(*[bytes([b]) for b in encoded]), (c.c_int32 * 5)(*row["coords"])
        numbers = [c.c_uint32(row["shared"]), c.c_uint32(row["expect"])]
        values = [encoded_map, coords, *numbers, c.c_uint64(before), c.c_uint64(after), c.c_uint64(flag)]
        pointers = (c.c_void_p * len(values))(*[c.addressof(v) for v in values])
        function = gpu.kernel(len(row["box"]), row["store"])
        gpu("cuLaunchKernel", function, 1, 1, 1, 128, 1, 1, SHARED_BYTES + 64, None, pointers, None)
        row["error"] = gpu.lib.cuCtxSynchronize()
        done.append(row)
        if row["error"]:
            break
        row["completed"] = None if row["store"] else int(gpu.read(flag, 4)[0]) == 2
        for name, place, n in (("shared_after", after, SHARED_BYTES), ("global_after", tensor, GLOBAL_BYTES)):
            row[name] = hashlib.sha256(gpu.read(place, n).tobytes()).hexdigest()[:32]
    path.write_text(json.dumps(done))
    sys.stdout.flush()


def write(path: Path, what: str, machine: str, rows: list[dict]) -> None:
    head = {"what": what, "machine": machine, "date": datetime.date.today().isoformat()}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + lines + "\n ]\n}\n")
    print(f"{path}: {len(rows)} rows")


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:  # a child: copies from this number on
        make_copies(copies()[int(sys.argv[2]) :], folder / "part.json")
        return
    folder.mkdir(parents=True, exist_ok=True)
    part, done, total = folder / "part.json", [], len(copies())
    while len(done) < total:
        # A faulted context may make the child's exit fail; what counts is that it wrote its part.
        subprocess.run([sys.executable, __file__, str(folder), str(len(done))], check=False)
        done += json.loads(part.read_text())
        part.unlink()
    gpu = Driver()
    write(
        folder / "tma.json",
        "Bulk tensor copies as a GPU did them. type, swizzle, oob: the driver's enumerations. error: what the launch"
        " returned (0, 715 illegal instruction, 716 misaligned address). completed: the mbarrier's phase ended after"
        " `expect` bytes."
        " shared_after, global_after: SHA-256 (32 digits) of the memories, which held the recorder's pattern before",
        gpu.machine,
        done,
    )
    encoded = []
    for row in tensor_maps():
        code, raw = gpu.encode(row)
        if not code:
            encoded.append({**row, "bytes": raw[:64].hex()})
    write(
        folder / "tensormaps.json",
        "Tensor maps as cuTensorMapEncodeTiled wrote them: its arguments (driver enumerations) and the first 64 bytes",
        gpu.machine,
        encoded,
    )


if __name__ == "__main__":
    main()
