"""Hopper's matrix instructions line by line: fragments, ldmatrix, mma.sync, wgmma and its rules."""

from __future__ import annotations

import numpy as np
import pytest

import ptxemu
from ptxemu.errors import IllegalInstruction, MemoryFault, UnsupportedInstruction
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import K_MAJOR, MN_MAJOR, SmemDescriptor
from ptxemu.isa.fragments import a_matrix, accumulator, accumulator_registers, b_matrix
from ptxemu.isa.wgmma import decode_matrix_descriptor, encode_matrix_descriptor
from ptxemu.testing import run_lines

RNG = np.random.default_rng(90)
LATE = [ptxemu.Config(), *(ptxemu.Config(schedule="adversarial", seed=s) for s in range(3))]
LANE, E = np.arange(32), np.arange(2)


def bits16(x, kind):
    """Numbers as 16-bit patterns of `kind`; they must be exact in it."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def pair(low, high):
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


def small(*shape):
    return RNG.integers(-8, 9, shape).astype(np.float32)


# Independent formulas: the (row, column) of each element as the ISA's tables give them, lane by lane.


def a_register(matrix, r):
    row, k = LANE // 4 + 8 * (r % 2), LANE % 4 * 2 + 8 * (r // 2)
    return pair(matrix[row, k], matrix[row, k + 1])


def b_register(matrix, r):
    n, k = LANE // 4, LANE % 4 * 2 + 8 * r
    return pair(matrix[n, k], matrix[n, k + 1])


def c_place(i):
    return LANE // 4 + 8 * (i // 2 % 2), LANE % 4 * 2 + i % 2 + 8 * (i // 4)


def test_fragments_by_the_formulas_of_the_isa() -> None:
    a, b = RNG.integers(0, 1 << 16, (16, 16), np.uint16), RNG.integers(0, 1 << 16, (8, 16), np.uint16)
    assert (a_matrix(np.stack([a_register(a, r) for r in range(4)])) == a).all()
    assert (b_matrix(np.stack([b_register(b, r) for r in range(2)])) == b).all()
    d = RNG.standard_normal((3, 16, 24)).astype(np.float32)
    registers = accumulator_registers(d, "f32")
    for i in range(12):
        assert (registers[i].view(np.float32) == d[(slice(None), *c_place(i))]).all()
    assert (accumulator(registers, "f32") == d).all()
    h = d.astype(np.float16)
    packed = accumulator_registers(h, "f16")
    assert packed.shape == (6, 3, 32) and (accumulator(packed, "f16") == h).all()
    low, high = c_place(2), c_place(3)
    assert (packed[1, 0] == pair(h[0][low].view(np.uint16), h[0][high].view(np.uint16))).all()


# ------------------------------------------------------------------------------------------------------------- mma.sync


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize(("kind", "sums"), [("bf16", "f32"), ("f16", "f32"), ("f16", "f16")])
def test_mma_sync_of_16_bits(k, kind, sums) -> None:
    a, b, c = small(16, k), small(8, k), small(16, 8)
    na, nb, nc = k // 4, k // 8, 4 if sums == "f32" else 2
    inputs = {f"a{r}": a_register(bits16(a, kind), r) for r in range(na)}
    inputs |= {f"b{r}": b_register(bits16(b, kind), r) for r in range(nb)}
    inputs |= {f"c{r}": x for r, x in enumerate(accumulator_registers(c, sums))}

    def names(letter, count):
        return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"

    line = f"mma.sync.aligned.m16n8k{k}.row.col.{sums}.{kind}.{kind}.{sums} "
    line += ", ".join([names("d", nc), names("a", na), names("b", nb), names("c", nc)]) + ";"
    got = run_lines(line, inputs, {f"d{i}": np.uint32 for i in range(nc)})
    d = accumulator(np.stack([got[f"d{i}"] for i in range(nc)]), sums)
    assert (d == a.astype(np.float64) @ b.T + c).all()


@pytest.mark.parametrize("k", [4, 8])
def test_mma_sync_of_tf32(k) -> None:
    a, b, c = small(16, k), small(8, k), small(16, 8)
    junk = np.uint32(0x1FFF)  # bits that are not part of a TF32 number
    inputs = {
        f"a{r}": a[LANE // 4 + 8 * (r % 2), LANE % 4 + 4 * (r // 2)].view(np.uint32) | junk for r in range(k // 2)
    }
    inputs |= {f"b{r}": b[LANE // 4, LANE % 4 + 4 * r].view(np.uint32) | junk for r in range(k // 4)}
    inputs |= {f"c{i}": c[c_place(i)].view(np.uint32) for i in range(4)}
    ra, rb = (", ".join(f"%{x}{i}" for i in range(n)) for x, n in (("a", k // 2), ("b", k // 4)))
    line = f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32 {{%d0, %d1, %d2, %d3}}, {{{ra}}}, {{{rb}}}, "
    got = run_lines(line + "{%c0, %c1, %c2, %c3};", inputs, {f"d{i}": np.float32 for i in range(4)})
    want = a.astype(np.float64) @ b.T + c
    for i in range(4):
        assert (got[f"d{i}"] == want[c_place(i)]).all()


def test_mma_sync_refuses_by_name() -> None:
    line = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%d0}, {%d0}, {%d0}, {%d0};"
    with pytest.raises(UnsupportedInstruction, match="m16n8k16"):
        run_lines(line, {}, {"d0": np.uint32})


# --------------------------------------------------------------------------------------------------- ldmatrix, stmatrix

COPY = """
    mov.u32 %base, sm;
    mov.u32 %own, %tid.x;
    mad.lo.u32 %own, %own, 16, %base;   // thread i fills row i: words 4 i to 4 i + 3
    st.shared.v4.b32 [%own], {%w0, %w1, %w2, %w3};
    bar.sync 0;
"""
SM = ".shared .align 16 .b8 sm[1024]; .reg .b32 %base; .reg .b32 %own; .reg .b32 %at;"


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans) -> None:
    rows = RNG.integers(0, 1 << 16, (32, 8), np.uint16)  # row of lane l: any 16 bytes; here in a mixed order
    order = RNG.permutation(32).astype(np.uint32)
    words = rows.view(np.uint32)
    inputs = {f"w{i}": words[:, i].copy() for i in range(4)} | {"order": order}
    regs = ", ".join(f"%d{i}" for i in range(count))
    body = COPY + "mad.lo.u32 %at, %order, 16, %base;\n"
    body += f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{regs}}}, [%at];"
    got = run_lines(body, inputs, {f"d{i}": np.uint32 for i in range(count)}, declare=SM)
    for i in range(count):
        matrix = rows[order[8 * i : 8 * i + 8]]
        if trans:
            matrix = matrix.T
        assert (got[f"d{i}"] == pair(matrix[LANE // 4, LANE % 4 * 2], matrix[LANE // 4, LANE % 4 * 2 + 1])).all()


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count, trans) -> None:
    matrices = RNG.integers(0, 1 << 16, (count, 8, 8), np.uint16)
    order = RNG.permutation(32).astype(np.uint32)
    given = matrices.swapaxes(1, 2) if trans else matrices
    inputs = {f"w{i}": np.zeros(32, np.uint32) for i in range(4)} | {"order": order}
    inputs |= {f"m{i}": pair(x[LANE // 4, LANE % 4 * 2], x[LANE // 4, LANE % 4 * 2 + 1]) for i, x in enumerate(given)}
    regs = ", ".join(f"%m{i}" for i in range(count))
    body = COPY + "mad.lo.u32 %at, %order, 16, %base;\n"
    body += f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%at], {{{regs}}};\nbar.sync 0;\n"
    body += "ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%own];"
    got = run_lines(body, inputs, {f"d{i}": np.uint32 for i in range(4)}, declare=SM)
    shared = np.stack([got[f"d{i}"] for i in range(4)], 1).view(np.uint16)
    want = np.zeros((32, 8), np.uint16)
    want[order[: 8 * count]] = matrices.reshape(-1, 8)
    assert (shared == want).all()


def test_movmatrix() -> None:
    x = RNG.integers(0, 1 << 16, (8, 8), np.uint16)
    got = run_lines(
        "movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;",
        {"a": pair(x[LANE // 4, LANE % 4 * 2], x[LANE // 4, LANE % 4 * 2 + 1])},
        {"d": np.uint32},
    )["d"]
    assert (got == pair(x.T[LANE // 4, LANE % 4 * 2], x.T[LANE // 4, LANE % 4 * 2 + 1])).all()


def test_ldmatrix_of_bytes_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedInstruction, match="m16n16"):
        run_lines("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%d, %e}, [%d];", {}, {"d": np.uint32, "e": "u4"})


# ---------------------------------------------------------------------------------------------------------------- wgmma

N = 16
IMAGE = 32768
FILL = f"""
    .reg .pred %p;
    mov.u32 %base, sm;
    mov.u32 %i, %tid.x;
    cvta.to.global.u64 %from, %image;
FILL:
    mad.wide.u32 %ptr, %i, 4, %from;
    ld.global.b32 %w, [%ptr];
    mad.lo.u32 %at, %i, 4, %base;
    st.shared.b32 [%at], %w;
    add.u32 %i, %i, 128;
    setp.lt.u32 %p, %i, {IMAGE // 4};
    @%p bra FILL;
    fence.proxy.async;
    bar.sync 0;
"""
HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 sm[];\n"
BASE, A_AT, B_AT = 1024, 0, 16384
WAIT = "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"


def kernel(body, image, given, count, config=None, threads=128):
    """128 threads: shared memory from `image`; thread t finds given[:, t] in %v0.. and leaves %d0.. for us."""
    given = np.ascontiguousarray(given, np.uint32)
    out = np.zeros((count, threads), np.uint32)
    text = HEAD + ".visible .entry k(.param .u64 image, .param .u64 given, .param .u64 out)\n{\n"
    text += ".reg .b32 %base, %i, %w, %at, %t; .reg .b64 %image, %from, %ptr, %given, %out;\n"
    text += f".reg .b32 %v<{max(len(given), 1)}>; .reg .b32 %d<{count}>; .reg .pred %q;\n"
    text += "ld.param.u64 %image, [image]; ld.param.u64 %given, [given]; ld.param.u64 %out, [out];\n" + FILL
    text += "mov.u32 %t, %tid.x; mad.wide.u32 %given, %t, 4, %given; mad.wide.u32 %out, %t, 4, %out;\n"
    for i in range(len(given)):
        text += f"ld.global.b32 %v{i}, [%given+{4 * threads * i}];\n"
    text += body + "\n"
    for i in range(count):
        text += f"st.global.b32 [%out+{4 * threads * i}], %d{i};\n"
    text += "ret;\n}\n"
    args = [np.ascontiguousarray(image), given, out]
    ptxemu.run_ptx(text, block=(threads,), args=args, shared=IMAGE, config=config)
    return out


def place(image, descriptor, matrix, major):
    """Write a matrix (rows, 16) of 16-bit patterns where a descriptor says, by the plain address formula."""
    image.view(np.uint16)[(descriptor.addresses(len(matrix), major) - BASE) // 2] = matrix


def describe(start, swizzle, major, rows):
    """A descriptor for a tile of K = 16, tightly packed."""
    if major == K_MAJOR:
        lbo, sbo = (128, 256) if not swizzle.span else (16, 8 * swizzle.span)
    elif swizzle.span:
        lbo, sbo = 16 * swizzle.span, 8 * swizzle.span  # (rows of a span) x (8 of k) after one another
    else:
        lbo, sbo = 128, 256
    return decode_matrix_descriptor(encode_matrix_descriptor(BASE + start, lbo, sbo, swizzle))


def of_warps(registers):
    """accumulator registers (R, 4, 32) <-> (R, 128)."""
    return registers.reshape(len(registers), 128)


def wgmma(a, b, keep="1", scales="1, 1", trans="0, 0", n=N, sums="f32", kind="bf16"):
    regs = ", ".join(f"%d{i}" for i in range(n // (2 if sums == "f32" else 4)))
    return (
        f"setp.ne.u32 %q, {keep}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.{sums}.{kind}.{kind} {{{regs}}}, {a}, {b}, %q, {scales}, {trans};"
    )


def prepare(swizzle=sw.SWIZZLE_32B, a_major=K_MAJOR, b_major=K_MAJOR, kind="bf16", n=N):
    a, b, image = small(64, 16), small(n, 16), np.zeros(IMAGE, np.uint8)
    da, db = describe(A_AT, swizzle, a_major, 64), describe(B_AT, swizzle, b_major, n)
    place(image, da, bits16(a, kind), a_major)
    place(image, db, bits16(b, kind), b_major)
    return a, b, image, da, db


def load_d(count):
    return "".join(f"mov.b32 %d{i}, %v{i};\n" for i in range(count))


@pytest.mark.parametrize("config", LATE[:2], ids=["fair", "adversarial"])
@pytest.mark.parametrize("b_major", [K_MAJOR, MN_MAJOR])
@pytest.mark.parametrize("a_major", [K_MAJOR, MN_MAJOR])
@pytest.mark.parametrize("swizzle", [sw.NONE, sw.SWIZZLE_32B, sw.SWIZZLE_64B, sw.SWIZZLE_128B], ids=lambda s: s.name)
def test_wgmma_from_shared_memory(swizzle, a_major, b_major, config) -> None:
    n = 64
    a, b, image, da, db = prepare(swizzle, a_major, b_major, n=n)
    d = small(64, n)
    body = load_d(n // 2) + "wgmma.fence.sync.aligned;\n"
    body += wgmma(da.value, db.value, trans=f"{a_major}, {b_major}", n=n) + WAIT
    got = kernel(body, image, of_warps(accumulator_registers(d.reshape(4, 16, n), "f32")), n // 2, config)
    got = accumulator(got.reshape(-1, 4, 32), "f32").reshape(64, n)
    assert (got == a.astype(np.float64) @ b.T + d).all()


@pytest.mark.parametrize("config", LATE, ids=["fair", "0", "1", "2"])
def test_wgmma_with_a_in_registers_signs_and_scale_d(config) -> None:
    a, b, image, _, db = prepare()
    given = np.stack([[a_register(bits16(a[16 * w : 16 * w + 16], "bf16"), r) for w in range(4)] for r in range(4)])
    body = "wgmma.fence.sync.aligned;\n"
    body += wgmma("{%v0, %v1, %v2, %v3}", db.value, keep="0", scales="-1, 1", trans="0") + WAIT
    got = kernel(body, image, of_warps(given), N // 2, config)
    assert (accumulator(got.reshape(-1, 4, 32), "f32").reshape(64, N) == -(a.astype(np.float64) @ b.T)).all()


def test_wgmma_with_sums_of_fp16() -> None:
    a, b, image, da, db = prepare(kind="f16")
    body = "wgmma.fence.sync.aligned;\n" + wgmma(da.value, db.value, keep="0", sums="f16", kind="f16") + WAIT
    got = kernel(body, image, np.zeros((0, 128)), N // 4)
    assert (accumulator(got.reshape(-1, 4, 32), "f16").reshape(64, N) == a.astype(np.float64) @ b.T).all()


def test_registers_are_read_when_the_tensor_core_runs() -> None:
    """A warp that changes A's registers before wait_group changes the product, under some schedule."""
    a, b, image, _, db = prepare()
    given = np.stack([[a_register(bits16(a[16 * w : 16 * w + 16], "bf16"), r) for w in range(4)] for r in range(4)])
    body = "wgmma.fence.sync.aligned;\n" + wgmma("{%v0, %v1, %v2, %v3}", db.value, keep="0", trans="0")
    body += "mov.b32 %v0, 0;\n" + WAIT
    want = a.astype(np.float64) @ b.T
    results = [
        accumulator(kernel(body, image, of_warps(given), N // 2, c).reshape(-1, 4, 32), "f32").reshape(64, N)
        for c in LATE
    ]
    assert any((x != want).any() for x in results)


def test_an_early_look_at_the_sums_is_noticed() -> None:
    """No wait_group: some schedule shows the registers as they were."""
    a, b, image, da, db = prepare()
    body = load_d(N // 2) + "wgmma.fence.sync.aligned;\n" + wgmma(da.value, db.value, keep="0")
    body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;"
    want = a.astype(np.float64) @ b.T
    given = np.full((N // 2, 128), 0x7FC00000)
    results = [accumulator(kernel(body, image, given, N // 2, c).reshape(-1, 4, 32), "f32") for c in LATE]
    assert any((x.reshape(64, N) != want).any() for x in results)


def test_rules_of_wgmma() -> None:
    _, _, image, da, db = prepare()
    none = np.zeros((0, 128))
    with pytest.raises(IllegalInstruction, match=r"no wgmma\.fence"):
        kernel(wgmma(da.value, db.value) + WAIT, image, none, N // 2)
    fence = "wgmma.fence.sync.aligned;\n"
    with pytest.raises(IllegalInstruction, match=r"warps \[3\] never issued"):
        kernel("setp.gt.u32 %q, %t, 95;\n@%q bra OUT;\n" + fence + wgmma(da.value, db.value) + "OUT:", image, none, 8)
    with pytest.raises(IllegalInstruction, match="not the same in all lanes"):
        body = "cvt.u64.u32 %ptr, %t;\n" + fence + wgmma("%ptr", db.value) + WAIT
        kernel(body, image, none, N // 2)
    with pytest.raises(MemoryFault, match=r"wgmma\.mma_async: the operand"):
        far = encode_matrix_descriptor(BASE + IMAGE - 256, 16, 256, sw.SWIZZLE_32B)
        kernel(fence + wgmma(da.value, far) + WAIT, image, none, N // 2)
    with pytest.raises(UnsupportedInstruction, match="m64n16k8"):
        text = wgmma(da.value, db.value).replace("k16", "k8").replace("bf16", "tf32")
        kernel(fence + text + WAIT, image, none, N // 2)


def test_matrix_descriptor() -> None:
    d = decode_matrix_descriptor(encode_matrix_descriptor(0x8400, 16, 1024, sw.SWIZZLE_128B))
    assert d == SmemDescriptor(d.value, 0x8400, 16, 1024, 0, False, sw.SWIZZLE_128B)
    assert d.value == 0x4000004000010840
    with pytest.raises(IllegalInstruction, match="bits 46-48"):
        decode_matrix_descriptor(d.value | 1 << 46)
    with pytest.raises(UnsupportedInstruction, match="base offset"):
        decode_matrix_descriptor(d.value | 1 << 49)
    with pytest.raises(ValueError, match="multiple of 16"):
        encode_matrix_descriptor(8, 16, 16, sw.NONE)
