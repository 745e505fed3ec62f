"""What s01_baseline says of itself as data, against the kernel that comes out of the compiler."""

import importlib
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from ptxemu.isa import descriptors

compile_module = importlib.import_module("attnbook.compile")
stage = importlib.import_module("attnbook.kernels.blackwell.s01_baseline")

ALL = (1 << 64) - 1


@pytest.fixture(scope="module")
def kernel():
    return compile_module._compile(stage, "bf16", True, "sm_100a", False, True, False)


@pytest.fixture(scope="module")
def code(kernel):
    return fold(kernel.ptx)


def fold(ptx: str) -> list[tuple[str, list[str], dict[str, int]]]:
    """(opcode, operands, known registers) of every instruction, with dynamic shared memory and TMEM starting at 0.

    Registers whose value follows from constants alone are known; everything that depends on the thread is not. The
    compiler writes each register once, bar the loop's own, so one pass from top to bottom is enough.
    """
    lines = [m for line in ptx.splitlines() if (m := re.match(r"\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s*(.*);", line))]
    written = Counter(line[2].split(",")[0] for line in lines)
    known: dict[str, int] = {"__dynamic_shmem__0": 0}
    rules = {
        "mov": lambda a: a,
        "cvt": lambda a: a,
        "shfl": lambda a, *_: a,
        "add": lambda a, b: a + b,
        "or": lambda a, b: a | b,
        "and": lambda a, b: a & b,
        "shr": lambda a, b: a >> b,
        "shl": lambda a, b: a << b,
    }
    out = []
    for match in lines:
        opcode, operands = match[1], re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^,\s]+", match[2])

        def value(operand: str) -> int | None:
            if re.fullmatch(r"-?\d+", operand):
                return int(operand) & ALL
            return known.get(operand)

        rule = rules.get(opcode.split(".")[0])
        target = operands[0] if operands else ""
        if opcode == "ld.shared.b32" and operands[1].endswith(f"+{stage.SMEM['tmem_address'][0]}]"):
            known[target] = 0  # the TMEM address that tcgen05.alloc left there
        elif rule and re.fullmatch(r"%\w+", target) and written[target] == 1:
            inputs = [value(x) for x in operands[1:]]
            if all(x is not None for x in inputs):
                known[target] = rule(*inputs) & ALL
        out.append((opcode, operands, {r: known[r] for r in re.findall(r"%\w+", match[2]) if r in known}))
    return out


def address(operand: str, known: dict[str, int]) -> int:
    base, _, offset = operand.strip("[]").partition("+")
    return known[base] + int(offset or 0)


def named(code, prefix):
    return [entry for entry in code if entry[0].startswith(prefix)]


def test_threads_and_the_whole_of_shared_memory(kernel):
    assert f".reqntid {stage.THREADS}, 1, 1" in kernel.ptx
    end = max(offset + size for offset, size in stage.SMEM.values())
    assert 0 <= kernel.shared_bytes - end < 8  # rounded up to the alignment of the barriers
    spans = sorted(stage.SMEM.values())
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans)), "two things in one place"
    assert set(stage.SMEM_ALIASES.values()) <= set(stage.SMEM)


def test_every_barrier_is_where_the_map_says_with_its_count(code):
    found = {address(ops[0], known): known[ops[1]] for _, ops, known in named(code, "mbarrier.init")}
    assert found == {stage.SMEM[name][0]: facts["count"] for name, facts in stage.BARRIERS.items()}


def test_bytes_that_the_loads_promise(code):
    found = {address(ops[1], known): known[ops[2]] for _, ops, known in named(code, "mbarrier.arrive.expect_tx")}
    expected = {stage.SMEM[name][0]: facts["bytes"] for name, facts in stage.BARRIERS.items() if facts["bytes"]}
    assert found == expected


def test_who_waits_on_what(code):
    waited = [address(ops[1], known) for _, ops, known in named(code, "mbarrier.try_wait")]
    assert waited == [stage.SMEM[name][0] for name in ("q_full", "kv_full", "s_full", "o_full")]
    committed = [address(ops[0], known) for _, ops, known in named(code, "tcgen05.commit")]
    assert committed == [stage.SMEM[name][0] for name in ("s_full", "o_full")]


def test_tma_fills_the_three_tiles_in_boxes_of_eight_columns(code):
    loads = named(code, "cp.async.bulk.tensor.4d")
    assert len(loads) == 48
    for n, (name, barrier) in enumerate((("Q", "q_full"), ("K", "kv_full"), ("V", "kv_full"))):
        start, size = stage.SMEM[name]
        tile = loads[16 * n : 16 * n + 16]
        assert [address(ops[0], known) for _, ops, known in tile] == list(range(start, start + size, size // 16))
        assert {address(ops[2], known) for _, ops, known in tile} == {stage.SMEM[barrier][0]}


def test_tensor_memory(code):
    (_, ops, known) = named(code, "tcgen05.alloc")[0]
    assert known[ops[1]] == stage.TMEM_COLUMNS
    assert address(ops[0], known) == stage.SMEM["tmem_address"][0]
    assert len(named(code, "tcgen05.dealloc")) == len(named(code, "tcgen05.relinquish_alloc_permit")) == 1
    spans = sorted(stage.TMEM.values())
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    assert max(a + n for a, n in spans) <= stage.TMEM_COLUMNS


def test_the_sixteen_mmas(code):
    """Accumulators, operand layouts and shapes, as the tensor core is told them."""
    mmas = [
        (address(ops[0], known), known[ops[1]], known[ops[2]], known[ops[3]])
        for _, ops, known in named(code, "tcgen05.mma")
    ]
    qk, pv = mmas[:8], mmas[8:]
    assert {m[0] for m in qk} == {stage.TMEM["S"][0]} and {m[0] for m in pv} == {stage.TMEM["O"][0]}
    assert {m[3] for m in qk} == {0x08200490} and {m[3] for m in pv} == {0x08210490}
    a, b = descriptors.K_MAJOR, descriptors.MN_MAJOR
    for group, names, majors in ((qk, "QK", (a, a)), (pv, "PV", (a, b))):
        for operand in (0, 1):
            name = stage.SMEM_ALIASES.get(names[operand], names[operand])
            start, size = stage.SMEM[name]
            tile = [descriptors.decode_smem_descriptor(m[1 + operand]) for m in group]
            addresses = np.concatenate([d.addresses(128, majors[operand]) for d in tile], axis=1)
            # All eight steps together read every element of the tile once.
            assert np.array_equal(np.sort(addresses.ravel()), np.arange(start, start + size, 2)), names[operand]


def test_ranges(kernel):
    marked = compile_module._compile(stage, "bf16", True, "sm_100a", True, True, False)
    names = re.findall(r"__iket_evt_decl_(\w+)_(\d+)_attrs\[", marked.ptx)
    assert [name for name, _ in sorted(names, key=lambda n: int(n[1]))] == list(stage.RANGES)
    pushes = re.findall(r"pmevent\.mask\s+(\d+)", marked.ptx)
    assert pushes.count("31") == len(pushes) // 2  # every range is closed
    assert "pmevent" not in kernel.ptx
    assert all(len(name) <= 32 for name in stage.RANGES)


# ---- the layouts ----------------------------------------------------------------------------------------------------


def evaluate(*functions):
    """{name: (shape, stride)} of the stage's layout functions, read from CuTe."""
    import cutlass
    import cutlass.cute as cute

    found = {}

    @cute.jit
    def trace():
        for function in functions:
            layout = function(cutlass.BFloat16)
            found[function.__name__] = (layout.outer.shape, layout.outer.stride)

    trace()
    return found


def offsets(shape, stride) -> np.ndarray:
    """Offsets of every coordinate of a CuTe layout, in colexicographic order."""
    if isinstance(shape, int):
        return np.arange(shape) * stride
    total = np.zeros(1, dtype=int)
    for extent, step in zip(shape, stride, strict=True):
        total = (offsets(extent, step)[:, None] + total[None, :]).ravel()
    return total


@pytest.fixture(scope="module")
def layouts():
    functions = (
        stage.q_smem_layout,
        stage.k_smem_layout,
        stage.p_smem_layout,
        stage.p_rows_layout,
        stage.v_smem_layout,
    )
    return {name: offsets(*layout).reshape(128, 128, order="F") for name, layout in evaluate(*functions).items()}


def test_layouts_are_core_matrices_of_eight_rows_by_sixteen_bytes(layouts):
    row, k = np.meshgrid(np.arange(128), np.arange(128), indexing="ij")
    k_major = row // 8 * 64 + row % 8 * 8 + k // 8 * 1024 + k % 8
    for name in ("q_smem_layout", "k_smem_layout", "p_smem_layout", "p_rows_layout"):
        assert np.array_equal(layouts[name], k_major), name
    n, key = row, k  # V as the tensor core sees it: (head dimension, keys)
    assert np.array_equal(layouts["v_smem_layout"], key // 8 * 64 + key % 8 * 8 + n // 8 * 1024 + n % 8)


def test_what_the_mma_reads_is_what_the_layouts_say(layouts, code):
    """The shared-memory descriptors in the kernel address each element where CuTe's layout puts it."""
    mmas = named(code, "tcgen05.mma")
    for first, column, layout, tile, major in (
        (0, 1, "q_smem_layout", "Q", descriptors.K_MAJOR),
        (0, 2, "k_smem_layout", "K", descriptors.K_MAJOR),
        (8, 1, "p_smem_layout", "K", descriptors.K_MAJOR),
        (8, 2, "v_smem_layout", "V", descriptors.MN_MAJOR),
    ):
        words = [known[ops[column]] for _, ops, known in mmas[first : first + 8]]
        read = np.concatenate([descriptors.decode_smem_descriptor(w).addresses(128, major) for w in words], axis=1)
        assert np.array_equal(read, stage.SMEM[tile][0] + 2 * layouts[layout]), tile


def test_stores_of_p_do_not_conflict(layouts):
    """Eight threads at a time store 16 bytes each: together they touch every bank once, in every chunk of the row."""
    start = layouts["p_rows_layout"][:, :: stage.CHUNK] * 2
    for chunk in range(start.shape[1]):
        for phase in range(0, 128, 8):
            banks = (start[phase : phase + 8, chunk, None] // 4 + np.arange(4)) % 32
            assert len(np.unique(banks)) == 32


# ---- what the stage refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"seqlen": 100}, "seqlen = 100 .* multiple of 128; take 128"),
        ({"seqlen": 0}, "seqlen = 0"),
        ({"seqlen": 500}, "take 512"),
        ({"head_dim": 64}, "head_dim = 64"),
        ({"batch": 0}, "batch = 0"),
        ({"causal": True}, "causal = True: .* causal=False"),
        ({"scale": float("nan")}, "scale = nan"),
        ({"scale": -1.0}, "scale = -1.0"),
        ({"scale": float("inf")}, "scale = inf"),
    ],
)
def test_check_names_the_value_and_the_remedy(arguments, says):
    with pytest.raises(ValueError, match=says):
        stage.check(**{"batch": 1, "seqlen": 128, "heads": 1, **arguments})


def test_check_lets_the_rest_pass():
    stage.check(3, 384, 5)
    stage.check(1, 128, 1, 128, scale=0.0)
