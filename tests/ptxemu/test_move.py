"""Moves, packing, permutes, and the instructions that look at other lanes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxemu import IllegalInstruction
from ptxemu.testing import run_lines

FEW = settings(max_examples=8, deadline=None)
U32 = st.integers(0, 0xFFFFFFFF)
LANES = np.arange(32)


def words(n=32):
    return st.lists(U32, min_size=n, max_size=n).map(lambda x: np.array(x, np.uint32))


@FEW
@given(a=words(), b=words())
def test_pack_and_unpack(a, b):
    lines = """.reg .b16 %q<4>; .reg .b64 %x; .reg .b128 %y; .reg .b64 %z<2>;
        mov.b64 %d, {%a, %b}; mov.b64 {%lo, %hi}, %d; mov.b64 {_, %only}, %d;
        mov.b32 {%q0, %q1}, %a; mov.b32 %swap, {%q1, %q0}; mov.b64 {%q0, %q1, %q2, %q3}, %d;
        mov.b64 %x, {%q3, %q2, %q1, %q0};
        mov.b64 {%r0, %r1}, %x; mov.b128 %y, {%d, %x}; mov.b128 {%z0, %z1}, %y; mov.b64 {%t, _}, %z1;
        mov.b64 %self, {%a, %a}; mov.b64 {%self0, %self1}, %self;"""
    names = ["lo", "hi", "only", "swap", "r0", "r1", "t", "self0", "self1"]
    out = run_lines(lines, {"a": a, "b": b}, {"d": np.uint64, **dict.fromkeys(names, np.uint32), "self": np.uint64})
    assert np.array_equal(out["d"], a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    assert np.array_equal(out["lo"], a) and np.array_equal(out["hi"], b) and np.array_equal(out["only"], b)
    assert np.array_equal(out["swap"], a << 16 | a >> 16)
    assert np.array_equal(out["r0"], b << 16 | b >> 16) and np.array_equal(out["r1"], a << 16 | a >> 16)
    assert np.array_equal(out["t"], out["r0"])
    assert np.array_equal(out["self0"], a) and np.array_equal(out["self1"], a)


def test_unpack_onto_its_own_source_and_literals():
    a = np.arange(32, dtype=np.uint32)
    lines = """.reg .b64 %x; .reg .pred %p; mov.b64 %x, {%a, 7}; mov.b64 {%a, %k}, %x; mov.f32 %f, 0f3FC00000;
        mov.f64 %g, 0.5; mov.pred %p, -1;
        selp.b32 %s, 3, 4, %p; mov.b32 %n, -2; selp.f32 %h, 0f3F800000, 0f00000000, %p; slct.u32.s32 %c, 1, 2, %n;"""
    outputs = {
        "k": np.uint32,
        "f": np.float32,
        "g": np.float64,
        "s": np.uint32,
        "n": np.int32,
        "h": np.float32,
        "c": np.uint32,
    }
    out = run_lines(lines, {"a": a}, outputs)
    assert [out[n][5] for n in outputs] == [7, 1.5, 0.5, 3, -2, 1.0, 2]


@FEW
@given(a=words(), b=words(), c=words())
def test_prmt(a, b, c):
    modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]
    lines = "prmt.b32 %d, %a, %b, %c;" + "".join(f"prmt.b32.{m} %{m}, %a, %b, %c;" for m in modes)
    out = run_lines(lines, {"a": a, "b": b, "c": c}, dict.fromkeys(["d", *modes], np.uint32))
    for i in range(32):
        source = int(a[i]).to_bytes(4, "little") + int(b[i]).to_bytes(4, "little")
        want = 0
        for j in range(4):
            selector = int(c[i]) >> 4 * j & 15
            byte = source[selector & 7]
            want |= (byte if selector < 8 else 0xFF * (byte >> 7)) << 8 * j
        assert int(out["d"][i]) == want
        n = int(c[i]) & 3
        places = {
            "f4e": [n, n + 1, n + 2, n + 3], "b4e": [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8],
            "rc8": [n] * 4,
            "ecl": [max(j, n) for j in range(4)], "ecr": [min(j, n) for j in range(4)],
            "rc16": [2 * (n & 1) + (j & 1) for j in range(4)],
        }  # fmt: skip
        for m in modes:
            assert int(out[m][i]) == sum(source[p] << 8 * j for j, p in enumerate(places[m])), m


@FEW
@given(a=words(), by=st.integers(0, 31), width=st.sampled_from([32, 16, 8]))
def test_shfl(a, by, width):
    segment = 32 - width
    up, other = segment << 8, segment << 8 | 31
    lines = f"""shfl.sync.up.b32 %u|%pu, %a, {by}, {up}, -1; shfl.sync.down.b32 %d|%pd, %a, {by}, {other}, -1;
        shfl.sync.bfly.b32 %x|%px, %a, {by}, {other}, -1; shfl.sync.idx.b32 %i|%pi, %a, {by}, {other}, -1;"""
    out = run_lines(lines, {"a": a}, {n: np.uint32 for n in "udxi"} | {"p" + n: np.bool_ for n in "udxi"})
    for lane in range(32):
        first = lane // width * width
        last = first + width - 1
        sources = {"u": lane - by, "d": lane + by, "x": lane ^ by, "i": first + by % width}
        valid = {"u": lane - by >= first, "d": lane + by <= last, "x": lane ^ by <= last, "i": True}
        for n, source in sources.items():
            assert bool(out["p" + n][lane]) == valid[n], (n, lane)
            assert int(out[n][lane]) == int(a[source] if valid[n] else a[lane]), (n, lane)


def test_vote_match_redux_elect():
    a = np.array([3, 3, 5, 7] * 8, np.uint32)
    lines = """.reg .pred %p; .reg .b32 %m; setp.eq.u32 %p, %a, 3; vote.sync.ballot.b32 %b, %p, -1;
        vote.sync.any.pred %y, %p, -1;
        vote.sync.all.pred %l, %p, -1; vote.sync.uni.pred %u, !%p, -1; match.any.sync.b32 %n, %a, -1;
        match.all.sync.b32 %o|%q, %a, -1;
        redux.sync.add.u32 %s, %a, -1; redux.sync.max.s32 %x, %a, -1; redux.sync.xor.b32 %z, %a, -1;
        elect.sync %e|%f, -1; activemask.b32 %k;"""
    outputs = {n: np.uint32 for n in "bnosxzek"} | {n: np.bool_ for n in "ylufq"}
    out = run_lines(lines, {"a": a}, outputs)
    three = int("0011" * 8, 2)
    assert set(out["b"].tolist()) == {three}
    assert out["y"].all() and not out["l"].any() and not out["u"].any()
    assert out["n"].tolist() == [sum(1 << j for j in range(32) if a[j] == a[i]) for i in range(32)]
    assert not out["o"].any() and not out["q"].any()
    assert set(out["s"].tolist()) == {int(a.sum())} and set(out["x"].tolist()) == {7} and set(out["z"].tolist()) == {0}
    assert set(out["e"].tolist()) == {0} and out["f"].tolist() == [True] + [False] * 31
    assert set(out["k"].tolist()) == {0xFFFFFFFF}


def test_collectives_of_some_lanes():
    """The upper half works among itself while the lower half is elsewhere."""
    a = np.arange(32, dtype=np.uint32)
    lines = """.reg .pred %p; mov.b32 %s, 0; mov.b32 %k, 0; mov.b32 %e, 99; .reg .pred %el; setp.lt.u32 %p, %a, 16;
        @%p bra L;
        redux.sync.add.u32 %s, %a, 0xffff0000; activemask.b32 %k; elect.sync %e|%el, 0xffff0000;
        L: shfl.sync.idx.b32 %r, %s, 31, 31, -1;"""
    out = run_lines(lines, {"a": a}, dict.fromkeys("skre", np.uint32))
    total = sum(range(16, 32))
    assert out["s"].tolist() == [0] * 16 + [total] * 16
    assert out["k"].tolist() == [0] * 16 + [0xFFFF0000] * 16
    assert out["e"].tolist() == [99] * 16 + [16] * 16
    assert set(out["r"].tolist()) == {total}


def test_a_lane_outside_of_the_membermask_is_illegal():
    with pytest.raises(IllegalInstruction, match=r"lane 0 of warp 0 .* membermask 0xfffffffe"):
        run_lines("vote.sync.ballot.b32 %b, 1, 0xfffffffe;".replace("1,", "%p,"), {"p": LANES == 1}, {"b": np.uint32})
