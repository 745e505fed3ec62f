"""What every stage of the ladder says of itself as data, against the compiled kernel and a traced run of it.

Stage 1 has more of this, instruction by instruction, in test_s01_facts.py.
"""

import functools
import importlib
import itertools
import re
from collections import Counter, defaultdict

import numpy as np
import pytest

pytest.importorskip("torch")

from attnbook.ladder import LADDER
from attnbook.run import run
from ptxemu.isa import descriptors

compile_module = importlib.import_module("attnbook.compile")
STAGES = [stage.number for stage in LADDER.implemented if stage.machine == "blackwell" and stage.number <= 7]
KV_TILES = 3
FIRST = 1024  # where dynamic shared memory begins in a CTA's window
QK, PV = 0x08200490, 0x08210490  # instruction descriptors for bf16


@pytest.fixture(scope="module", params=STAGES)
def number(request):
    return request.param


@pytest.fixture(scope="module")
def stage(number):
    return compile_module.stage_module(number)


@functools.cache
def traced(number):
    """A traced run over three KV tiles."""
    return run(number, 1, 1, 128 * KV_TILES, trace=True, lse=True, device="emulator")


@pytest.fixture(scope="module")
def result(number):
    return traced(number)


@pytest.fixture(scope="module")
def events(result):
    """The events of CTA 0."""
    assert result.verdict.ok and not result.run.findings
    return [event for event in result.trace.events if event.cta == 0]


def marks(events, name):
    """{barrier: events of that name}, by the name that the stage gives it."""
    found = defaultdict(list)
    for event in events:
        if event.row.startswith("mbar:") and event.name == name:
            found[event.data["barrier"] - FIRST].append(event)
    return found


def place(stage, offset):
    """The thing in the shared-memory map that a byte belongs to."""
    (name,) = [name for name, (start, size) in stage.SMEM.items() if start <= offset - FIRST < start + size]
    return name


def mmas(events):
    return [event.data for event in events if event.name == "MMA" and event.kind == "begin"]


# ---- the compiled kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_registers_without_spills(number, stage, arch):
    kernel = compile_module.compile(number, arch=arch)
    assert kernel.stack_bytes == 0 and kernel.spills == 0
    assert kernel.registers <= 65536 // stage.THREADS


def test_the_kernel_is_named_after_its_file(number, stage):
    assert compile_module.compile(number).kernel_name.startswith(stage.__name__.rsplit(".", 1)[1])


def test_threads_shared_memory_and_tensor_memory(number, stage, events):
    kernel = compile_module.compile(number)
    assert f".reqntid {stage.THREADS}, 1, 1" in kernel.ptx
    assert 0 <= kernel.shared_bytes - max(offset + size for offset, size in stage.SMEM.values()) < 8
    for spans in (stage.SMEM.values(), stage.TMEM.values()):
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(sorted(spans))), "two things in one place"
    assert max(first + columns for first, columns in stage.TMEM.values()) <= stage.TMEM_COLUMNS
    (allocated,) = [event.data for event in events if event.name == "TMEM alloc"]
    assert (allocated["column"], allocated["columns"]) == (0, stage.TMEM_COLUMNS)
    assert stage.SMEM["tmem_address"][1] == 4


def test_names_of_the_ranges(number, stage):
    marked = compile_module.compile(number, iket=True).ptx
    names = re.findall(r"__iket_evt_decl_(\w+)_(\d+)_attrs\[", marked)
    assert [name for name, _ in sorted(names, key=lambda n: int(n[1]))] == list(stage.RANGES)


def test_who_is_in_which_range(stage, events):
    """Every role goes through its own ranges, and closes them; the warps are those that the facts name."""
    everybody = set(range(stage.THREADS // 32))
    roles = {role: set(warps) for role, warps in getattr(stage, "ROLES", {}).items()}
    assert not roles or sorted(itertools.chain(*roles.values())) == sorted(everybody)
    softmax = roles.get("softmax", everybody)
    expected = {name: softmax for name in stage.RANGES if name != "mask"}  # the mask is for ragged lengths
    expected |= {"setup": everybody, "load": roles.get("load", everybody)}
    expected |= {name: roles.get("mma", everybody) for name in ("qk", "pv")}
    seen = defaultdict(set)
    depth = Counter()
    for event in events:
        if event.row.startswith("warp") and event.name in stage.RANGES:
            seen[event.name].add(int(event.row.removeprefix("warp")))
            depth[event.row, event.name] += 1 if event.kind == "begin" else -1
    assert seen == expected
    assert set(depth.values()) == {0}


# ---- barriers -------------------------------------------------------------------------------------------------------


def test_barriers_and_their_counts(stage, events):
    found = {offset: event.data["count"] for offset, (event,) in marks(events, "init").items()}
    assert found == {stage.SMEM[name][0]: facts["count"] for name, facts in stage.BARRIERS.items()}
    assert all(stage.SMEM[name][1] == 8 for name in stage.BARRIERS)


def test_phases_and_bytes(stage, events):
    completed = {offset: found[-1].data["phase"] for offset, found in marks(events, "phase").items()}
    expected = {stage.SMEM[n][0]: eval(f["phases"], {"n": KV_TILES}) for n, f in stage.BARRIERS.items()}
    assert completed == expected
    promised = {offset: {event.data["bytes"] for event in found} for offset, found in marks(events, "expect").items()}
    assert promised == {stage.SMEM[n][0]: {f["bytes"]} for n, f in stage.BARRIERS.items() if f["bytes"]}


def test_who_arrives_and_who_waits(stage, events):
    """Units arrive where the facts say units; the warps that are seen waiting are those of the role that should."""
    roles = {role: set(warps) for role, warps in getattr(stage, "ROLES", {}).items()}
    roles["all threads"] = set(range(stage.THREADS // 32))
    for q in (0, 1):
        roles[f"softmax of {q}"] = {4 * q, 4 * q + 1, 4 * q + 2, 4 * q + 3}
    named = {stage.SMEM[name][0] + FIRST: name for name in stage.BARRIERS}
    waited = set()
    for event in events:
        if event.name == "wait" and event.kind == "begin" and event.data["barrier"] in named:
            name = named[event.data["barrier"]]
            assert int(event.row.removeprefix("warp")) in roles[stage.BARRIERS[name]["waits"]], name
            waited.add(name)
    assert {"q_full", *(name for name in stage.BARRIERS if name.startswith(("s_full", "o_full")))} <= waited
    committed = {named[event.data["barrier"]] for event in events if event.name == "commit"}
    assert committed == {name for name, facts in stage.BARRIERS.items() if facts["arrives"].startswith("tensor core")}
    filled = {named[event.data["barrier"]] for event in events if event.name == "TMA load"}
    assert filled == {name for name, facts in stage.BARRIERS.items() if facts["arrives"].startswith("TMA")}


# ---- what is loaded and multiplied ----------------------------------------------------------------------------------


def test_what_tma_loads(number, stage, events):
    """Every tile whole, in boxes of 16 bytes a row without a swizzle, and of 128 bytes with it."""
    boxes = [event.data for event in events if event.name == "TMA load" and event.kind == "begin"]
    size = 2048 if number < 3 else 16384
    assert {box["bytes"] for box in boxes} == {size}
    assert {box["swizzle"] for box in boxes} == {"none" if number < 3 else "128B"}
    q_tiles = getattr(stage, "Q_TILES", 1)
    assert Counter(box["tensor"] for box in boxes) == {
        name: tiles * stage.TILE_BYTES // size for name, tiles in (("q", q_tiles), ("k", KV_TILES), ("v", KV_TILES))
    }
    offsets = defaultdict(list)
    for box in boxes:
        offsets[place(stage, box["offset"])].append(box["offset"] - FIRST)
    for name, found in offsets.items():
        start, length = stage.SMEM[name]
        assert set(found) == set(range(start, start + length, size)), name


def test_order_of_the_products(number, stage, events):
    """Q K^T and P V, eight steps each, in the order that is the stage's idea."""
    columns = {first: name for name, (first, _) in stage.TMEM.items()}
    steps = [columns[mma["column"]] for mma in mmas(events)]
    groups = [(name, len(list(group))) for name, group in itertools.groupby(steps)]
    order = [name for name, _ in groups]
    n = KV_TILES
    if number < 5:
        assert order == ["S", "O"] * n
    elif number < 7:
        assert order == ["S0", "S1", "O0", "O1"] * n
    else:
        assert order == ["S0", "S1", *["O0", "S0", "O1", "S1"] * (n - 1), "O0", "O1"]
    assert {count for _, count in groups} == {8}


def test_operands_of_the_products(number, stage, events):
    """Shapes, accumulators and operands: each product of eight steps reads every element of its tiles once."""
    columns = {first: name for name, (first, _) in stage.TMEM.items()}
    steps = mmas(events)
    products = [steps[i : i + 8] for i in range(0, len(steps), 8)]
    first = set()
    for product in products:
        d = columns[product[0]["column"]]
        is_qk = d.startswith("S")
        assert {step["idesc"] for step in product} == {QK if is_qk else PV}
        kept = [step["accumulate"] for step in product]
        assert kept == [not is_qk and d in first] + [True] * 7
        first.add(d)
        q = d[1:]
        if is_qk:
            assert {place(stage, step["a_offset"]) for step in product} == {f"Q{q}"}
            assert whole(stage, f"Q{q}", [step["a_descriptor"] for step in product], descriptors.K_MAJOR)
        elif number == 1:
            assert {place(stage, step["a_offset"]) for step in product} == {stage.SMEM_ALIASES["P"]}
        else:
            start, width = stage.TMEM_ALIASES[f"P{q}"]
            assert [step["a_column"] for step in product] == list(range(start, start + width, 8))
        (b,) = {place(stage, step["b_offset"]) for step in product}
        assert b in (("K" if is_qk else "V"), "KV0", "KV1", "KV2")
        major = descriptors.K_MAJOR if is_qk else descriptors.MN_MAJOR
        assert whole(stage, b, [step["b_descriptor"] for step in product], major)
    if "KV0" in stage.SMEM:
        slots = [place(stage, p[0]["b_offset"]) for p in products if columns[p[0]["column"]] in ("S0", "O0")]
        kinds = [columns[p[0]["column"]][0] for p in products if columns[p[0]["column"]] in ("S0", "O0")]
        tokens = {"S": itertools.count(0, 2), "O": itertools.count(1, 2)}
        assert slots == [f"KV{next(tokens[kind]) % stage.KV_SLOTS}" for kind in kinds]


def whole(stage, name, words, major):
    """Do the eight descriptors read every 16-bit element of the tile once?"""
    start, size = stage.SMEM[name]
    read = np.concatenate([descriptors.decode_smem_descriptor(w).addresses(128, major) for w in words], axis=1)
    return np.array_equal(np.sort(read.ravel()), np.arange(FIRST + start, FIRST + start + size, 2))


def test_p_covers_only_scores_that_were_read(number, stage):
    """Chunk c of P is stored when scores 0 to 8 c + 7 have been read, and lies within them."""
    for name, (start, width) in getattr(stage, "TMEM_ALIASES", {}).items():
        s_start, _ = stage.TMEM[name.replace("P", "S")]
        assert width == stage.TILE_N // 2
        for chunk in range(stage.TILE_N // stage.CHUNK):
            last = start + (chunk + 1) * stage.CHUNK // 2 - 1
            assert s_start <= start and last <= s_start + (chunk + 1) * stage.CHUNK - 1
    assert (number == 1) == (not hasattr(stage, "TMEM_ALIASES"))


# ---- layouts --------------------------------------------------------------------------------------------------------


def offsets(shape, stride) -> np.ndarray:
    """Offsets of every coordinate of a CuTe layout, in colexicographic order."""
    if isinstance(shape, int):
        return np.arange(shape) * stride
    total = np.zeros(1, dtype=int)
    for extent, step in zip(shape, stride, strict=True):
        total = (offsets(extent, step)[:, None] + total[None, :]).ravel()
    return total


def test_what_the_mma_reads_is_what_the_layouts_say(number, stage, events):
    """The descriptors in the kernel address each element where CuTe's layout, swizzle included, puts it."""
    import cutlass
    import cutlass.cute as cute

    layouts = {}

    @cute.jit
    def trace():
        for name in ("q", "k", "v"):
            layout = getattr(stage, f"{name}_smem_layout")(cutlass.BFloat16)
            layouts[name] = offsets(layout.outer.shape, layout.outer.stride).reshape(128, 128, order="F")

    trace()
    steps = mmas(events)
    pv = next(i for i, step in enumerate(steps) if step["idesc"] == PV)
    for name, first, operand, major in (
        ("q", 0, "a", descriptors.K_MAJOR),
        ("k", 0, "b", descriptors.K_MAJOR),
        ("v", pv, "b", descriptors.MN_MAJOR),
    ):
        words = [step[f"{operand}_descriptor"] for step in steps[first : first + 8]]
        read = np.concatenate([descriptors.decode_smem_descriptor(w).addresses(128, major) for w in words], axis=1)
        start = FIRST + stage.SMEM[place(stage, steps[first][f"{operand}_offset"])][0]
        expected = start + 2 * layouts[name]
        if number >= 3:
            expected ^= expected >> 3 & 0x70  # SWIZZLE_128B: bits 4 to 6 of the address, XOR bits 7 to 9
        assert np.array_equal(read, expected), name


# ---- what the stages refuse -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seqlen": 0}, "seqlen = 0"),
        ({"head_dim": 64}, "head_dim = 64"),
        ({"heads": 0}, "heads = 0"),
        ({"causal": True}, "causal = True: .* causal=False"),
        ({"scale": float("nan")}, "scale = nan"),
        ({"scale": -1.0}, "scale = -1.0"),
    ],
)
def test_check_names_the_value_and_the_remedy(stage, arguments, says):
    with pytest.raises(ValueError, match=says):
        stage.check(**{"batch": 1, "seqlen": 128, "heads": 1, **arguments})


def test_lengths(number, stage):
    stage.check(1, 384, 1)
    if number < 7:
        with pytest.raises(ValueError, match="take 512"):
            stage.check(1, 500, 1)
    else:
        stage.check(1, 500, 1)
        stage.check(1, 1, 1)
