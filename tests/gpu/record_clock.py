"""Measure the rates and latencies that the clock's table needs: python tests/gpu/record_clock.py FILE.json.

Each figure comes from a small PTX kernel that reads %clock64 around what it measures. Needs a Hopper GPU, its driver
(libcuda) and NumPy; no CUDA toolkit. `--dry-run` runs the kernels once in the emulator instead, to see that they are
right; its numbers mean nothing.
"""

from __future__ import annotations

import ctypes as c
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HEAD = """
.version 8.0
.target sm_90a
.address_size 64
"""


class Gpu:
    """The driver's own interface."""

    def __init__(self) -> None:
        self.lib = c.CDLL("libcuda.so.1")
        device, context, name = c.c_int(), c.c_void_p(), c.create_string_buffer(96)
        self("cuInit", 0)
        self("cuDeviceGet", c.byref(device), 0)
        self("cuDeviceGetName", name, 96, device)
        self("cuCtxCreate_v2", c.byref(context), 0, device)
        version = c.c_int()
        self("cuDriverGetVersion", c.byref(version))
        self.name, self.driver = name.value.decode(), version.value
        self.functions: dict[str, c.c_void_p] = {}

    def __call__(self, name: str, *args: Any) -> None:
        error = getattr(self.lib, name)(*args)
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def alloc(self, data: np.ndarray) -> c.c_uint64:
        place = c.c_uint64()
        self("cuMemAlloc_v2", c.byref(place), c.c_size_t(data.nbytes))
        self("cuMemcpyHtoD_v2", place, c.c_void_p(data.ctypes.data), c.c_size_t(data.nbytes))
        return place

    def tensor_map(self, place: c.c_uint64, width: int, height: int, box: tuple[int, int], swizzle: int) -> bytes:
        """A 2-D map of 16-bit elements (cuTensorMapEncodeTiled). swizzle: 0 none, 3 for 128 bytes."""
        opaque = (c.c_uint8 * 192)()
        start = (c.addressof(opaque) + 63) // 64 * 64
        pair64, pair32 = c.c_uint64 * 2, c.c_uint32 * 2
        self("cuTensorMapEncodeTiled", c.c_void_p(start), 1, 2, place, pair64(width, height),
             (c.c_uint64 * 1)(2 * width), pair32(*box), pair32(1, 1), 0, swizzle, 0, 0)  # fmt: skip
        return bytes((c.c_uint8 * 128).from_address(start))

    def launch(self, text: str, grid: int, block: int, shared: int, params: list[Any]) -> None:
        """params: integers (addresses, 64-bit) or 128 bytes of a tensor map."""
        if text not in self.functions:
            module, function = c.c_void_p(), c.c_void_p()
            log = c.create_string_buffer(8192)
            options, values = (c.c_int * 2)(5, 6), (c.c_void_p * 2)(c.addressof(log), 8192)
            error = self.lib.cuModuleLoadDataEx(c.byref(module), text.encode(), 2, options, values)
            if error:
                raise RuntimeError(f"CUDA error {error}: {log.value.decode()}\n{text}")
            self("cuModuleGetFunction", c.byref(function), module, b"bench")
            self("cuFuncSetAttribute", function, 8, shared)
            self.functions[text] = function
        held = [c.create_string_buffer(p, len(p)) if isinstance(p, bytes) else c.c_uint64(p) for p in params]
        pointers = (c.c_void_p * len(held))(*[c.addressof(h) for h in held])
        self("cuLaunchKernel", self.functions[text], grid, 1, 1, block, 1, 1, shared, None, pointers, None)
        self("cuCtxSynchronize")


# out: for each warp of each CTA its first and last %clock64, then the same of %globaltimer.
BODY = (
    HEAD
    + """
.extern .shared .align 1024 .b8 sm[];
.visible .entry bench(.param .u64 out{params})
{{
    .reg .b32 %r<64>, %th, %warp, %lane, %cta, %base, %i; .reg .b64 %rd<32>, %t0, %t1, %g0, %g1, %out, %a;
    .reg .f32 %f<160>; .reg .pred %p<8>; .reg .b16 %h<8>;
    ld.param.u64 %out, [out];
    mov.u32 %th, %tid.x; shr.u32 %warp, %th, 5; and.b32 %lane, %th, 31; mov.u32 %cta, %ctaid.x;
    mov.u32 %base, sm;
    {setup}
    bar.sync 0;
    mov.u64 %g0, %globaltimer;
    mov.u64 %t0, %clock64;
    {timed}
    mov.u64 %t1, %clock64;
    mov.u64 %g1, %globaltimer;
    {finish}
    setp.ne.u32 %p7, %lane, 0;
    @%p7 bra END;
    mov.u32 %r63, %ntid.x; shr.u32 %r63, %r63, 5; mad.lo.u32 %r63, %cta, %r63, %warp;
    mul.wide.u32 %a, %r63, 32; add.u64 %a, %a, %out;
    st.global.u64 [%a], %t0; st.global.u64 [%a+8], %t1; st.global.u64 [%a+16], %g0; st.global.u64 [%a+24], %g1;
END:
    ret;
}}
"""
)


def text(timed: str, setup: str = "", finish: str = "", params: str = "") -> str:
    return BODY.format(timed=timed, setup=setup, finish=finish, params=params)


KEEP = "setp.eq.f32 %p6, %f0, 0f4B189680; @%p6 st.global.f32 [%out], %f0;"  # so that nothing is thrown away
FLOATS = "cvt.rn.f32.u32 %f100, %th; " + " ".join(f"add.f32 %f{i}, %f100, 0f3F80{i:02X}00;" for i in range(32))


def repeat(one: Callable[[int], str], n: int) -> str:
    return "\n    ".join(one(i) for i in range(n))


def sum_up() -> str:
    return " ".join(f"add.f32 %f0, %f0, %f{i};" for i in range(1, 32)) + " " + KEEP


INTS = "add.u32 %r31, %th, 3; " + " ".join(f"add.u32 %r{i}, %th, {i};" for i in range(24))
SUM_INTS = (
    " ".join(f"add.u32 %r0, %r0, %r{i};" for i in range(1, 24))
    + " setp.eq.u32 %p6, %r0, 123456789; @%p6 st.global.u32 [%out], %r0;"
)
N = 512  # operations of a run
RATES = {  # name: (one operation on one of 16 independent registers, setup, finish, its warps' operations each)
    "ffma": (lambda i: f"fma.rn.f32 %f{i % 16}, %f{i % 16}, %f16, %f17;", FLOATS, sum_up()),
    "fmul": (lambda i: f"mul.rn.f32 %f{i % 16}, %f{i % 16}, %f16;", FLOATS, sum_up()),
    "ex2": (lambda i: f"ex2.approx.ftz.f32 %f{i % 16}, %f{i % 16};", FLOATS, sum_up()),
    "fmnmx": (lambda i: f"max.f32 %f{i % 16}, %f{i % 16}, %f{(5 * i + 3) % 16};", FLOATS, sum_up()),
    "imad": (lambda i: f"mad.lo.u32 %r{i % 16}, %r{i % 16}, %r31, %r20;", INTS, SUM_INTS),
    "prmt": (lambda i: f"prmt.b32 %r{i % 16}, %r{i % 16}, %r{16 + i % 4}, 0x2143;", INTS, SUM_INTS),
    "shift": (lambda i: f"shf.l.wrap.b32 %r{i % 16}, %r{i % 16}, %r{16 + i % 4}, 7;", INTS, SUM_INTS),
    "pack": (
        lambda i: f"cvt.rn.bf16x2.f32 %r31, %f{i % 16}, %f{16 + i % 8}; mov.b32 %f{i % 16}, %r31;",
        FLOATS,
        sum_up(),
    ),
    "shfl": (lambda i: f"shfl.sync.bfly.b32 %r{i % 16}, %r{i % 16}, 1, 31, -1;", INTS, SUM_INTS),
}
CHAINS = {  # name: the same operation again and again on its own result
    "ffma": ("fma.rn.f32 %f0, %f0, %f16, %f17;", FLOATS, KEEP),
    "ex2": ("ex2.approx.ftz.f32 %f0, %f0;", FLOATS, KEEP),
    "shfl": ("shfl.sync.bfly.b32 %r0, %r0, 1, 31, -1;", INTS, SUM_INTS),
    "shift": ("shf.l.wrap.b32 %r0, %r0, %r16, 7;", INTS, SUM_INTS),
}


def arithmetic(measure: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Cycles of a sub-partition for a warp instruction with 1, 2 and 4 warps each; and in a chain."""
    found: dict[str, Any] = {}
    for name, (one, setup, finish) in RATES.items():
        kernel = text(repeat(one, N), setup, finish)
        rows = {}
        for warps in (4, 8, 16):
            t = measure(kernel, block=32 * warps)
            rows[warps] = float((t[:, 1].max() - t[:, 0].min()) / (N * warps / 4))
        found[f"{name} rate"] = rows
    for name, (one, setup, finish) in CHAINS.items():
        t = measure(text(repeat(lambda i, one=one: one, N), setup, finish), block=32)
        found[f"{name} latency"] = float((t[0, 1] - t[0, 0]) / N)
    return found


def shared(measure: Callable[..., np.ndarray]) -> dict[str, Any]:
    """A chain of dependent loads; stores of 16 bytes a lane in `n`-way conflict."""
    found: dict[str, Any] = {}
    chase = text(
        repeat(lambda i: "ld.shared.u32 %r1, [%r1];", 128),
        "st.shared.u32 [%base], %base; bar.sync 0; mov.u32 %r1, %base;",
        "setp.eq.u32 %p6, %r1, 7; @%p6 st.global.u32 [%out], %r1;",
    )
    t = measure(chase, block=32, shared=1024)
    found["lds latency"] = float((t[0, 1] - t[0, 0]) / 128)
    for stride in (4, 8, 16, 32, 64, 128):  # bytes from lane to lane
        kernel = text(repeat(lambda i: "st.volatile.shared.u32 [%r2], %r3;", 128),
                      f"mad.lo.u32 %r2, %lane, {stride}, %base; mov.u32 %r3, %th;")  # fmt: skip
        t = measure(kernel, block=32, shared=8192)
        found[f"sts stride {stride}"] = float((t[0, 1] - t[0, 0]) / 128)
    for warps in (1, 4, 8):
        kernel = text(repeat(lambda i: "st.volatile.shared.v4.u32 [%r2], {%r3, %r3, %r3, %r3};", 128),
                      "mad.lo.u32 %r2, %th, 16, %base; mov.u32 %r3, %th;")  # fmt: skip
        t = measure(kernel, block=32 * warps, shared=8192)
        found[f"sts.128 of {warps} warps"] = float((t[:, 1].max() - t[:, 0].min()) / (128 * warps))
    return found


def far(measure: Callable[..., np.ndarray], gpu: Any) -> dict[str, Any]:
    """A chain of loads that go to L2 (past L1)."""
    size = 1 << 12
    ring = np.empty(size * 16, np.uint64)  # one pointer every 128 bytes
    place = gpu.alloc(ring)
    order = np.random.default_rng(0).permutation(size)
    ring[order * 16] = int(place.value) + np.roll(order, -1).astype(np.uint64) * 128
    gpu.write(place, ring)
    kernel = text(
        repeat(lambda i: "ld.global.cg.u64 %rd1, [%rd1];", 256),
        "ld.param.u64 %rd1, [ring];",
        "setp.eq.u64 %p6, %rd1, 7; @%p6 st.global.u64 [%out], %rd1;",
        ", .param .u64 ring",
    )
    for _ in range(2):  # the second finds it in L2
        t = measure(kernel, block=32, params=[int(place.value) + int(order[0]) * 128])
    return {"ldg latency, L2": float((t[0, 1] - t[0, 0]) / 256)}


def barriers(measure: Callable[..., np.ndarray]) -> dict[str, Any]:
    """Named barriers of some warps; and two warps that hand a token back and forth through two mbarriers."""
    found: dict[str, Any] = {}
    for warps in (1, 2, 4, 8, 12):
        t = measure(text(repeat(lambda i: "bar.sync 1;", 64)), block=32 * warps)
        found[f"bar.sync of {warps} warps"] = float((t[:, 1].max() - t[:, 0].min()) / 64)
    setup = """
    setp.ne.u32 %p0, %th, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%base], 1; mbarrier.init.shared::cta.b64 [%base+8], 1;
READY:
    setp.eq.u32 %p1, %warp, 0; setp.eq.u32 %p2, %lane, 0; and.pred %p3, %p2, %p1; not.pred %p4, %p1;
    and.pred %p5, %p2, %p4;
"""

    def turn(i: int) -> str:
        parity = i % 2
        return f"""
    @!%p1 bra ANSWER{i};
    @%p2 mbarrier.arrive.shared::cta.b64 _, [%base];
BACK{i}:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%base+8], {parity};
    @!%p6 bra BACK{i};
    bra NEXT{i};
ANSWER{i}:
    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%base], {parity};
    @!%p6 bra ANSWER{i};
    @%p2 mbarrier.arrive.shared::cta.b64 _, [%base+8];
NEXT{i}:"""

    t = measure(text(repeat(turn, 64), setup), block=64, shared=1024)
    found["mbarrier hand-over"] = float((t[0, 1] - t[0, 0]) / 128)  # there and back are two
    done = setup + "@%p3 mbarrier.arrive.shared::cta.b64 _, [%base]; bar.sync 0;"
    poll = "mbarrier.try_wait.parity.shared::cta.b64 %p6, [%base], 0; @!%p6 trap;"
    t = measure(text(repeat(lambda i: poll, 64), done), block=32, shared=1024)
    found["try_wait of a phase that is over"] = float((t[0, 1] - t[0, 0]) / 64)
    return found


def copies(measure: Callable[..., np.ndarray], gpu: Any, sms: int) -> dict[str, Any]:
    """TMA loads: one box after another (latency), and as many as there are slots (rate), by the box's row."""
    height = 8192
    data = np.zeros((height, 64), np.uint16)
    place = gpu.alloc(data)
    setup = """
    setp.ne.u32 %p0, %th, 0;
    @%p0 bra READY;
    mbarrier.init.shared::cta.b64 [%base], 1;
    fence.mbarrier_init.release.cluster;
READY:
    mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1; add.u32 %r5, %base, 1024; rem.u32 %r6, %cta, 32; shl.b32 %r6, %r6, 8;
"""
    found: dict[str, Any] = {}

    def load(n: int, boxes: int, nbytes: int, rows: int) -> str:
        lines = [f"@!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {boxes * nbytes};"]
        for b in range(boxes):
            lines.append(
                f"add.u32 %r8, %r5, {b * nbytes % (96 * 1024)}; add.u32 %r9, %r6, {(n * boxes + b) * rows % 256};\n"
                "    @!%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r8], "
                "[%rd1, {%r7, %r9}], [%base];"
            )
        lines.append(f"W{n}:\n    mbarrier.try_wait.parity.shared::cta.b64 %p6, [%base], {n % 2};\n    @!%p6 bra W{n};")
        return "\n    ".join(lines)

    for width, swizzle in ((8, 0), (16, 0), (32, 0), (64, 0), (64, 3)):
        rows = 128
        map_ = gpu.tensor_map(place, 64, height, (width, rows), swizzle)
        nbytes = 2 * width * rows
        key = f"{rows} rows of {2 * width} bytes" + (", swizzled" if swizzle else "")
        for boxes in (1, 8):
            loads = "\n    ".join(load(n, boxes, nbytes, rows) for n in range(8))
            kernel = text(loads, setup + "mov.u32 %r7, 0;", params=", .param .align 64 .b8 map[128]")
            for ctas in (1, sms):
                if ctas > 1 and boxes == 1:
                    continue
                for _ in range(2):
                    t = measure(kernel, block=32, shared=1024 * 160, params=[map_], grid=ctas)
                each = (t[:, 1] - t[:, 0]) / (8 * boxes)
                name = "latency" if boxes == 1 else f"each of 8, {ctas} SMs"
                found[f"tma, {key}: {name}"] = float(np.median(each))
    map_ = gpu.tensor_map(place, 64, height, (64, 8), 3)
    kernel = text(repeat(lambda n: load(n, 1, 1024, 8), 8), setup + "mov.u32 %r7, 0;",
                  params=", .param .align 64 .b8 map[128]")  # fmt: skip
    for _ in range(2):
        t = measure(kernel, block=32, shared=1024 * 160, params=[map_])
    found["tma, 8 rows of 128 bytes, swizzled: latency"] = float((t[0, 1] - t[0, 0]) / 8)
    return found


def products(measure: Callable[..., np.ndarray], sms: int) -> dict[str, Any]:
    """wgmma m64n128k16 bf16 on random data: groups of eight, waited for one by one (latency), or one behind."""
    found: dict[str, Any] = {}
    fill = """
    mov.u32 %i, %th; mad.lo.u32 %r40, %th, 747796405, 2891336453;
FILL:
    mad.lo.u32 %r40, %r40, 747796405, 2891336453; shr.u32 %r41, %r40, 3; xor.b32 %r41, %r41, %r40;
    and.b32 %r41, %r41, 0x83FF83FF; or.b32 %r41, %r41, 0x3C003C00;
    mad.lo.u32 %r42, %i, 4, %base; st.shared.u32 [%r42], %r41; add.u32 %i, %i, %ntid_;
    setp.lt.u32 %p0, %i, 16384; @%p0 bra FILL;
    fence.proxy.async; bar.sync 0;
    shr.u32 %r43, %base, 4; and.b32 %r43, %r43, 0x3FFF; cvt.u64.u32 %rd1, %r43; or.b64 %rd1, %rd1, 0x4000004000010000;
    add.u64 %rd2, %rd1, 1024;
""".replace("%ntid_", "%r44")
    setup = "mov.u32 %r44, %ntid.x; " + FLOATS + " " + " ".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(64)) + fill
    d = ", ".join(f"%f{i}" for i in range(64))

    def mma(registers: bool, k: int) -> str:
        a = "{%r10, %r11, %r12, %r13}" if registers else f"%rd{10 + k % 4}"
        rest = "1, 1, 0" if registers else "1, 1, 0, 0"
        return f"wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {{{d}}}, {a}, %rd{14 + k % 4}, 1, {rest};"

    steps = " ".join(f"add.u64 %rd{10 + k}, %rd1, {2 * k}; add.u64 %rd{14 + k}, %rd2, {2 * k};" for k in range(4))
    setup += steps + " mov.u32 %r10, 0x3C003C80; mov.u32 %r11, %r10; mov.u32 %r12, %r10; mov.u32 %r13, %r10;"
    finish = " ".join(f"add.f32 %f0, %f0, %f{i};" for i in range(1, 64)) + KEEP

    def group(registers: bool, left: int) -> str:
        return ("wgmma.fence.sync.aligned; " + " ".join(mma(registers, k) for k in range(8))
                + f" wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned {left};")  # fmt: skip

    for registers in (False, True):
        kind = "A in registers" if registers else "A in shared memory"
        one = "wgmma.fence.sync.aligned; " + mma(registers, 0) + \
              " wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"  # fmt: skip
        t = measure(text(repeat(lambda i, one=one: one, 32), setup, finish), block=128, shared=65536 + 1024)
        found[f"wgmma m64n128k16, {kind}: one and its wait"] = float((t[:, 1].max() - t[:, 0].min()) / 32)
        for groups, grid in ((1, 1), (2, 1), (2, sms)):
            turns = 4 if grid == 1 else 400
            four = "\n    ".join([group(registers, 1)] * 4)
            loop = f"""mov.u32 %i, 0;
MORE:
    {four}
    add.u32 %i, %i, 1; setp.lt.u32 %p5, %i, {turns}; @%p5 bra MORE; wgmma.wait_group.sync.aligned 0;"""
            t = measure(text(loop, setup, finish), block=128 * groups, shared=65536 + 1024, grid=grid)
            cycles = (t[:, 1].max() - t[:, 0].min()) if grid == 1 else np.median(t[:, 1] - t[:, 0])
            each = float(cycles / (turns * 4 * 8 * groups))
            found[f"wgmma m64n128k16, {kind}: each, {groups} warpgroups, {grid} SMs"] = each
            if grid > 1:
                t = measure(text(loop.replace(f", {turns};", ", 20000;"), setup, finish), block=256,
                            shared=65536 + 1024, grid=grid)  # fmt: skip
                ghz = float(np.median((t[:, 1] - t[:, 0]) / (t[:, 3] - t[:, 2])))
                found[f"clock under a long load of wgmma, {kind}, GHz"] = ghz
                found[f"wgmma m64n128k16, {kind}: each, under a long load"] = float(
                    np.median(t[:, 1] - t[:, 0]) / (20000 * 4 * 8 * groups)
                )
    return found


def main(arguments: list[str]) -> int:
    if not arguments or "--help" in arguments:
        print(__doc__)
        return 0 if arguments else 2
    gpu: Any = Gpu()
    gpu.write = lambda place, data: gpu("cuMemcpyHtoD_v2", place, c.c_void_p(data.ctypes.data), c.c_size_t(data.nbytes))
    attribute = c.c_int()
    gpu("cuDeviceGetAttribute", c.byref(attribute), 16, 0)
    sms = attribute.value
    out = np.zeros((sms * 16, 4), np.uint64)
    place = gpu.alloc(out)

    def measure(kernel: str, *, block: int, shared: int = 0, grid: int = 1, params: tuple | list = ()) -> np.ndarray:
        """The median of five runs after a warm-up, by the longest: int64 [warp of the grid, (t0, t1, g0, g1)]."""
        warps = grid * block // 32
        runs = []
        for _ in range(2 if grid > 1 else 6):
            gpu.launch(kernel, grid, block, shared, [int(place.value), *params])
            got = np.zeros((warps, 4), np.uint64)
            gpu("cuMemcpyDtoH_v2", c.c_void_p(got.ctypes.data), place, c.c_size_t(got.nbytes))
            runs.append(got.astype(np.int64))
        runs = sorted(runs[1:], key=lambda t: int((t[:, 1] - t[:, 0]).max()))
        return runs[len(runs) // 2]

    found: dict[str, Any] = {}
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        ("arithmetic", lambda: arithmetic(measure)),
        ("shared memory", lambda: shared(measure)),
        ("L2", lambda: far(measure, gpu)),
        ("barriers", lambda: barriers(measure)),
        ("TMA", lambda: copies(measure, gpu, sms)),
        ("wgmma", lambda: products(measure, sms)),
    ]
    for name, part in parts:
        try:
            found |= part()
        except RuntimeError as error:
            print(f"{name}: {str(error)[:2000]}", file=sys.stderr)
    record = {
        "machine": gpu.name,
        "driver": gpu.driver,
        "date": datetime.date.today().isoformat(),
        "unit": "cycles of the SM clock, where the name does not say otherwise",
        "found": found,
    }
    Path(arguments[0]).write_text(json.dumps(record, indent=1) + "\n")
    for name, value in found.items():
        print(f"{name:60} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
