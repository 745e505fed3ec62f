"""Hopper stage 10, causal: skip what is masked, and start the longest rows first.

With ``causal`` a query sees the keys up to its own number. A CTA walks only the tiles that any of its rows can see; of
those a warpgroup hands back unread what lies behind its own 64 rows, masks the ones that the diagonal crosses, and
takes the others as they are.

CTAs now differ in what they have to do. The grid is one-dimensional: the last query tiles of 16 heads come first, then
the ones before, and so on, so that the short ones fill the gaps at the end; 16 heads, because their K and V fit into L2
together. Dense problems profit too: where the length is no multiple of 192, the rests of all heads come last. Which of
the two it is, is decided when the kernel is compiled.

    q, k, v, o   (batch, seqlen, heads, 128)  bf16 or fp16, the last dimension contiguous
    lse          (batch, heads, seqlen)       fp32, or None: log of the sum of exp(scores), natural logarithm
    scale        fp32, finite and not negative: what the scores are multiplied by, usually 1 / sqrt(128)

PTX ISA: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" (wgmma), "cp.async.bulk.tensor",
"mbarrier",
"setmaxnreg".
"""
# mypy: ignore-errors
# (what the DSL's objects are is known when a kernel is traced, not before)

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator

WARPGROUPS = 3  # that compute, on 64 query rows each
TILE_M = 64 * WARPGROUPS  # query rows a CTA
TILE_N = 80  # keys a step
HEAD_DIM = 128
THREADS = 128 * (1 + WARPGROUPS)  # warpgroup 0 loads
MMA_K = 16  # one wgmma multiplies 16 columns of A with 16 of B
STAGES = 2  # slots for K, and for V
LOAD_REGISTERS, COMPUTE_REGISTERS = 32, 160  # a thread, after setmaxnreg: 128 * 32 + 384 * 160 is all there is
HEADS_TOGETHER = 16  # (batch, head) pairs whose K and V are to be in L2 at the same time
LOWEST = -3.0e38  # a maximum that is finite: a row may see no key of its first tile, and -inf - -inf is NaN
LOG2_E = 1.4426950408889634

MAX_CTAS = 2**31 - 1  # of a one-dimensional grid
Q_BYTES = TILE_M * HEAD_DIM * 2
KV_BYTES = TILE_N * HEAD_DIM * 2  # of one tile of K, and of V
_BARRIERS_AT = Q_BYTES + 2 * STAGES * KV_BYTES

SMEM = {  # name: (offset, bytes) in the CTA's dynamic shared memory
    "Q": (0, Q_BYTES),
    "K": (Q_BYTES, STAGES * KV_BYTES),
    "V": (Q_BYTES + STAGES * KV_BYTES, STAGES * KV_BYTES),
    "q_full": (_BARRIERS_AT, 8),
    "k_full": (_BARRIERS_AT + 8, 8 * STAGES),
    "k_empty": (_BARRIERS_AT + 8 + 8 * STAGES, 8 * STAGES),
    "v_full": (_BARRIERS_AT + 8 + 16 * STAGES, 8 * STAGES),
    "v_empty": (_BARRIERS_AT + 8 + 24 * STAGES, 8 * STAGES),
}

BARRIERS = {  # name: arrivals that complete a phase, who makes them, who waits, phases of a slot for n KV tiles
    "q_full": {"count": 1, "bytes": Q_BYTES, "arrives": "TMA (Q)", "waits": "compute", "phases": "1"},
    "k_full": {"count": 1, "bytes": KV_BYTES, "arrives": "TMA (K)", "waits": "compute", "phases": "n / 2"},
    "k_empty": {"count": 4 * WARPGROUPS, "bytes": 0, "arrives": "compute", "waits": "load", "phases": "n / 2"},
    "v_full": {"count": 1, "bytes": KV_BYTES, "arrives": "TMA (V)", "waits": "compute", "phases": "n / 2"},
    "v_empty": {"count": 4 * WARPGROUPS, "bytes": 0, "arrives": "compute", "waits": "load", "phases": "n / 2"},
}
KNOBS = ("causal",)  # arguments of Attention, from the problem


def check(batch: int, seqlen: int, heads: int, head_dim: int = HEAD_DIM, *, causal: bool = False, scale: float = 1.0):
    """Raise ValueError, naming the value and the remedy, unless this stage can compute that problem."""
    if head_dim != HEAD_DIM:
        raise ValueError(
            f"head_dim = {head_dim}: this stage knows {HEAD_DIM} only; pad q, k and v with zeros to {HEAD_DIM}"
        )
    if seqlen < 1:
        raise ValueError(f"seqlen = {seqlen}: there must be at least one query and one key")
    if batch < 1 or heads < 1 or batch * heads * (seqlen // TILE_M + 1) > MAX_CTAS:
        raise ValueError(f"batch = {batch}, heads = {heads}: at least 1 each, and at most {MAX_CTAS} tiles in all")
    if not 0.0 <= scale < float("inf"):
        raise ValueError(f"scale = {scale} must be finite and not negative; the usual one is {head_dim**-0.5:.6f}")


def make_qk_mma(dtype: type[cutlass.Numeric]) -> cute.TiledMma:
    """S (64 x 80) += Q (64 x 16) K^T (16 x 80): both in shared memory, K-major."""
    op = warpgroup.MmaF16BF16Op(
        dtype,
        cutlass.Float32,
        (64, TILE_N, MMA_K),
        warpgroup.OperandSource.SMEM,
        OperandMajorMode.K,
        OperandMajorMode.K,
    )
    return cute.make_tiled_mma(op)


def make_pv_mma(dtype: type[cutlass.Numeric]) -> cute.TiledMma:
    """O (64 x 128) += P (64 x 16) V (16 x 128): P from registers; in V the head dimension is contiguous,
    not the keys that the sum runs over (MN-major)."""
    op = warpgroup.MmaF16BF16Op(
        dtype,
        cutlass.Float32,
        (64, HEAD_DIM, MMA_K),
        warpgroup.OperandSource.RMEM,
        OperandMajorMode.K,
        OperandMajorMode.MN,
    )
    return cute.make_tiled_mma(op)


def q_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """Q in shared memory, (rows, 128 of the head dimension): two boxes of 64 columns, 128-byte swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (TILE_M, HEAD_DIM), (0, 1))


def k_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """K in shared memory, (keys, 128 of the head dimension, slot), 128-byte swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
    return cute.tile_to_shape(atom, (TILE_N, HEAD_DIM, STAGES), (0, 1, 2))


def v_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """V in shared memory as the B operand of P V, (128 of the head dimension, keys, slot), 128-byte swizzle."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.MN_SW128, dtype)
    return cute.tile_to_shape(atom, (HEAD_DIM, TILE_N, STAGES), (1, 0, 2))


def bshd(t: cute.Tensor) -> cute.Tensor:
    """A (batch, seqlen, heads, 128) tensor with what the interface promises said to the compiler: the last dimension is
    128 long and contiguous, and every row starts at a multiple of 16 bytes, as TMA needs it."""
    batch, seqlen, heads, _ = t.shape
    stride = tuple(cute.assume(x, divby=8) for x in t.stride[:3])
    return cute.make_tensor(
        t.iterator.align(16), cute.make_layout((batch, seqlen, heads, HEAD_DIM), stride=(*stride, 1))
    )


def tma_tiles(tma: cute.CopyAtom, shared: cute.Tensor, tiles: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """Both ends of a TMA copy: the tile in shared memory, and (one tile, tile number ...) as TMA coordinates."""
    return cpasync.tma_partition(
        tma, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
    )


@cute.jit
def arrive(barrier):
    """One arrival for the whole warp."""
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive(barrier)


@cute.jit
def mask(S, keys, row, causal: cutlass.Constexpr):
    """Set to -inf what does not count of this tile: keys from number `keys` on, and where causal those after the query.
    row: the thread's first query, counted from the tile's first key."""
    column = cute.arch.lane_idx() % 4 * 2
    for r in cutlass.range_constexpr(2):
        allowed = keys - column
        if cutlass.const_expr(causal):
            allowed = cutlass.min(allowed, row + 8 * r + 1 - column)
        for j in cutlass.range_constexpr(cute.size(S) // 4):
            for e in cutlass.range_constexpr(2):
                at = 4 * j + 2 * r + e
                S[at] = S[at] if 8 * j + e < allowed else -cutlass.Float32.inf


@cute.jit
def softmax(S, row_max, row_sum, factor, scale_log2, first: cutlass.Constexpr):
    """S becomes 2^(scale_log2 * (S - maximum)), the maximum and the row sum follow, and `factor` is what O, if there is
    one, has to be multiplied by. A thread has a quarter of two rows; row_sum is of that quarter."""
    columns = cute.size(S) // 4
    for r in cutlass.range_constexpr(2):
        parts = [cute.arch.fmax(S[4 * c + 2 * r], S[4 * c + 2 * r + 1]) for c in range(4)]  # four chains, not one long
        for j in cutlass.range_constexpr(4, columns):
            parts[j % 4] = cute.arch.fmax(cute.arch.fmax(parts[j % 4], S[4 * j + 2 * r]), S[4 * j + 2 * r + 1])
        new_max = cute.arch.fmax(cute.arch.fmax(parts[0], parts[1]), cute.arch.fmax(parts[2], parts[3]))
        for distance in cutlass.range_constexpr(1, 3):  # lanes 1 and 2 apart: the four that share a row
            new_max = cute.arch.fmax(new_max, cute.arch.shuffle_sync_bfly(new_max, offset=distance))
        new_max = cute.arch.fmax(new_max, LOWEST)
        if cutlass.const_expr(not first):
            new_max = cute.arch.fmax(new_max, row_max[r])
            factor[r] = cute.math.exp2((row_max[r] - new_max) * scale_log2, fastmath=True)
        row_max[r] = new_max
        offset = new_max * scale_log2
        for j in cutlass.range_constexpr(columns):
            for e in cutlass.range_constexpr(2):
                at = 4 * j + 2 * r + e
                S[at] = cute.math.exp2(S[at] * scale_log2 - offset, fastmath=True)
        sums = [S[4 * c + 2 * r] + S[4 * c + 2 * r + 1] for c in range(4)]
        for j in cutlass.range_constexpr(4, columns):
            sums[j % 4] = sums[j % 4] + S[4 * j + 2 * r] + S[4 * j + 2 * r + 1]
        total = (sums[0] + sums[1]) + (sums[2] + sums[3])
        if cutlass.const_expr(first):
            row_sum[r] = total
        else:
            row_sum[r] = row_sum[r] * factor[r] + total


@cute.jit
def rescale(O, factor):  # noqa: E741
    """Multiply the two rows of O by their factors, unless no maximum of this warp has grown: then all of them are 1."""
    if cute.arch.vote_any_sync((factor[0] < 1.0) | (factor[1] < 1.0)):
        for r in cutlass.range_constexpr(2):
            for j in cutlass.range_constexpr(cute.size(O) // 4):
                for e in cutlass.range_constexpr(2):
                    O[4 * j + 2 * r + e] = O[4 * j + 2 * r + e] * factor[r]


@cute.jit
def convert(S, P):
    """P = S in 16 bits. Registers of an accumulator count (2 columns, 2 rows 8 apart, every 8 columns), those of an A
    operand (2 columns, 2 rows, 2 times 8 columns, every 16 columns): the same order."""
    for at in cutlass.range_constexpr(cute.size(S)):
        P[at] = S[at].to(P.element_type)


@cute.struct
class Control:
    """The few words of shared memory that are not operands."""

    q_full: cute.struct.MemRange[cutlass.Int64, 1]
    k_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    k_empty: cute.struct.MemRange[cutlass.Int64, STAGES]
    v_full: cute.struct.MemRange[cutlass.Int64, STAGES]
    v_empty: cute.struct.MemRange[cutlass.Int64, STAGES]


class Attention:
    """``cute.compile(Attention(), q, k, v, o, lse, scale, stream)``; batch, seqlen and heads stay dynamic."""

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
        stream: cuda.CUstream,
    ):
        self.dtype = q.element_type

        # The same memory, seen as the matrices that the MMAs multiply; heads and batches are further modes.
        q, k, v, o = bshd(q), bshd(k), bshd(v), bshd(o)
        q_mat = cute.make_tensor(q.iterator, cute.select(q.layout, mode=[1, 3, 2, 0]))  # (seqlen, d, heads, batch)
        k_mat = cute.make_tensor(k.iterator, cute.select(k.layout, mode=[1, 3, 2, 0]))  # (seqlen, d, heads, batch)
        v_mat = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[3, 1, 2, 0]))  # (d, seqlen, heads, batch)

        load = cpasync.CopyBulkTensorTileG2SOp()
        k_slot, v_slot = (cute.select(x(self.dtype), mode=[0, 1]) for x in (k_layout, v_layout))
        tma_q, q_coords = cpasync.make_tiled_tma_atom(load, q_mat, q_layout(self.dtype), (TILE_M, HEAD_DIM))
        tma_k, k_coords = cpasync.make_tiled_tma_atom(load, k_mat, k_slot, (TILE_N, HEAD_DIM))
        tma_v, v_coords = cpasync.make_tiled_tma_atom(load, v_mat, v_slot, (HEAD_DIM, TILE_N))

        batch, seqlen, heads, _ = q.shape
        q_tiles = (seqlen + TILE_M - 1) // TILE_M
        self.kernel(tma_q, q_coords, tma_k, k_coords, tma_v, v_coords, o, lse, scale).launch(
            grid=(q_tiles * heads * batch, 1, 1),
            block=(THREADS, 1, 1),
            min_blocks_per_mp=1,  # registers at the start: 65,536 over all threads
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        tma_q: cute.CopyAtom,
        q_coords: cute.Tensor,
        tma_k: cute.CopyAtom,
        k_coords: cute.Tensor,
        tma_v: cute.CopyAtom,
        v_coords: cute.Tensor,
        o: cute.Tensor,
        lse: cute.Tensor | None,
        scale: cutlass.Float32,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        group = cute.arch.make_warp_uniform(tidx // 128)
        batches, seqlen, heads, _ = o.shape

        # ==== which tile: CTAs with much to do go first, so that those with little fill the gaps at the end ===========
        index, _, _ = cute.arch.block_idx()
        pairs = heads * batches  # of a head and a batch
        if cutlass.const_expr(self.causal):  # the last rows see most keys; a few heads at a time, for the sake of L2
            q_tiles = (seqlen + TILE_M - 1) // TILE_M
            first_pair = index // (HEADS_TOGETHER * q_tiles) * HEADS_TOGETHER
            together = cutlass.min(HEADS_TOGETHER, pairs - first_pair)
            turn = index - first_pair * q_tiles
            pair, q_tile = first_pair + turn % together, q_tiles - 1 - turn // together
        else:  # whole tiles head by head, then the rests of all heads
            whole = seqlen // TILE_M
            pair, q_tile = index - whole * pairs, whole
            if index < whole * pairs:
                pair, q_tile = index // whole, index % whole
        head, batch = pair % heads, pair // heads
        kv_tiles = (seqlen + TILE_N - 1) // TILE_N
        if cutlass.const_expr(self.causal):
            kv_tiles = cutlass.min(kv_tiles, ((q_tile + 1) * TILE_M + TILE_N - 1) // TILE_N)
        active = cutlass.min(WARPGROUPS, (seqlen - q_tile * TILE_M + 63) // 64)  # warpgroups that have any query

        # ==== setup: shared memory and barriers =======================================================================
        smem = SmemAllocator()
        q_smem, k_smem, v_smem = q_layout(self.dtype), k_layout(self.dtype), v_layout(self.dtype)
        sQ = smem.allocate_tensor(self.dtype, q_smem.outer, 1024, q_smem.inner)
        sK = smem.allocate_tensor(self.dtype, k_smem.outer, 1024, k_smem.inner)
        sV = smem.allocate_tensor(self.dtype, v_smem.outer, 1024, v_smem.inner)
        control = smem.allocate(Control)
        q_full = control.q_full.data_ptr()
        k_full, k_empty = control.k_full.data_ptr(), control.k_empty.data_ptr()
        v_full, v_empty = control.v_full.data_ptr(), control.v_empty.data_ptr()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(q_full, BARRIERS["q_full"]["count"])
                for slot in cutlass.range_constexpr(STAGES):
                    cute.arch.mbarrier_init(k_full + slot, BARRIERS["k_full"]["count"])
                    cute.arch.mbarrier_init(k_empty + slot, 4 * active)
                    cute.arch.mbarrier_init(v_full + slot, BARRIERS["v_full"]["count"])
                    cute.arch.mbarrier_init(v_empty + slot, 4 * active)
            cute.arch.mbarrier_init_fence()  # TMA must find them initialised
        cute.arch.sync_threads()

        # ---- tiles as TMA sees them ----------------------------------------------------------------------------------
        gQ = cute.local_tile(q_coords[None, None, head, batch], (TILE_M, HEAD_DIM), (q_tile, 0))
        gK = cute.local_tile(k_coords[None, None, head, batch], (TILE_N, HEAD_DIM), (None, 0))
        gV = cute.local_tile(v_coords[None, None, head, batch], (HEAD_DIM, TILE_N), (0, None))
        to_sQ, from_gQ = tma_tiles(tma_q, sQ, gQ)
        to_sK, from_gK = tma_tiles(tma_k, sK, gK)
        to_sV, from_gV = tma_tiles(tma_v, sV, gV)

        if group == 0:
            # ==== load: one warp, Q once and then tile after tile, the last one first: its end may be masked ==========
            cute.arch.setmaxregister_decrease(LOAD_REGISTERS)
            if warp == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(q_full, BARRIERS["q_full"]["bytes"])
                cute.copy(tma_q, from_gQ, to_sQ, tma_bar_ptr=q_full)
                for i in cutlass.range(kv_tiles, unroll=1):
                    slot, parity = i % STAGES, i // STAGES & 1
                    tile = kv_tiles - 1 - i
                    cute.arch.mbarrier_wait(k_empty + slot, parity ^ 1)  # the first round finds both slots empty
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(k_full + slot, BARRIERS["k_full"]["bytes"])
                    cute.copy(tma_k, from_gK[None, tile], to_sK[None, slot], tma_bar_ptr=k_full + slot)
                    cute.arch.mbarrier_wait(v_empty + slot, parity ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(v_full + slot, BARRIERS["k_full"]["bytes"])
                    cute.copy(tma_v, from_gV[None, tile], to_sV[None, slot], tma_bar_ptr=v_full + slot)
        elif group <= active:
            # ==== compute =============================================================================================
            cute.arch.setmaxregister_increase(COMPUTE_REGISTERS)
            mine = group - 1
            thread = tidx % 128
            qk_mma, pv_mma = make_qk_mma(self.dtype), make_pv_mma(self.dtype)
            qk_thread, pv_thread = qk_mma.get_slice(thread), pv_mma.get_slice(thread)
            q_desc = qk_mma.make_fragment_A(qk_thread.partition_A(cute.local_tile(sQ, (64, HEAD_DIM), (mine, 0))))
            k_desc = qk_mma.make_fragment_B(qk_thread.partition_B(sK))
            v_desc = pv_mma.make_fragment_B(pv_thread.partition_B(sV))
            S = cute.make_rmem_tensor(qk_mma.partition_shape_C((64, TILE_N)), cutlass.Float32)
            P = cute.make_rmem_tensor(((2, 2, 2), 1, TILE_N // MMA_K), self.dtype)
            O = cute.make_rmem_tensor(pv_mma.partition_shape_C((64, HEAD_DIM)), cutlass.Float32)  # noqa: E741
            row_max = cute.make_rmem_tensor(2, cutlass.Float32)
            row_sum = cute.make_rmem_tensor(2, cutlass.Float32)
            factor = cute.make_rmem_tensor(2, cutlass.Float32)
            scale_log2 = scale * LOG2_E
            O.fill(0.0)
            query = q_tile * TILE_M + mine * 64 + thread // 32 * 16 + thread % 32 // 4  # and the one 8 further on
            cute.arch.mbarrier_wait(q_full, 0)

            # ---- causal: tiles that only later warpgroups of the CTA see are handed back unread ----------------------
            skipped = cutlass.Int32(0)
            full_tiles = kv_tiles  # from this tile on (counted from the front) keys are masked
            if cutlass.const_expr(self.causal):
                begin = q_tile * TILE_M + mine * 64
                seen = cutlass.min(kv_tiles, (begin + 64 + TILE_N - 1) // TILE_N)
                skipped = kv_tiles - seen
                full_tiles = begin // TILE_N
                for i in cutlass.range(skipped, unroll=1):
                    slot, parity = i % STAGES, i // STAGES & 1
                    cute.arch.mbarrier_wait(k_full + slot, parity)
                    arrive(k_empty + slot)
                    cute.arch.mbarrier_wait(v_full + slot, parity)
                    arrive(v_empty + slot)

            # ---- the first tile: S = Q K^T, softmax ------------------------------------------------------------------
            slot, parity = skipped % STAGES, skipped // STAGES & 1
            tile = kv_tiles - 1 - skipped
            cute.arch.mbarrier_wait(k_full + slot, parity)
            self.start_qk(S, q_desc, k_desc[None, None, None, slot])
            warpgroup.wait_group(0)
            arrive(k_empty + slot)
            mask(S, seqlen - tile * TILE_N, query - tile * TILE_N, self.causal)
            softmax(S, row_max, row_sum, factor, scale_log2, True)
            convert(S, P)

            # ---- every further tile: its QK and the PV of the one before, then softmax under that PV -----------------
            crossed = cutlass.min(kv_tiles, cutlass.max(kv_tiles - full_tiles, skipped + 1))
            for i in cutlass.range(skipped + 1, crossed, unroll=1):
                tile = kv_tiles - 1 - i
                self.step(S, P, O, q_desc, k_desc, v_desc, control, i)
                mask(S, seqlen - tile * TILE_N, query - tile * TILE_N, self.causal)
                softmax(S, row_max, row_sum, factor, scale_log2, False)
                self.finish(S, P, O, factor, v_empty, i)
            for i in cutlass.range(crossed, kv_tiles, unroll=1):
                self.step(S, P, O, q_desc, k_desc, v_desc, control, i)
                softmax(S, row_max, row_sum, factor, scale_log2, False)
                self.finish(S, P, O, factor, v_empty, i)

            # ---- the last pv -----------------------------------------------------------------------------------------
            slot, parity = (kv_tiles - 1) % STAGES, (kv_tiles - 1) // STAGES & 1
            cute.arch.mbarrier_wait(v_full + slot, parity)
            self.start_pv(O, P, v_desc[None, None, None, slot])
            warpgroup.wait_group(0)

            # ==== epilogue: O / row sum, and the LSE ==================================================================
            rows = cute.local_tile(o[batch, None, head, None], (64, HEAD_DIM), (q_tile * WARPGROUPS + mine, 0))
            gO = pv_thread.partition_C(rows)
            out = cute.make_rmem_tensor(gO.shape, self.dtype)
            for r in cutlass.range_constexpr(2):
                total = row_sum[r]
                for distance in cutlass.range_constexpr(1, 3):
                    total += cute.arch.shuffle_sync_bfly(total, offset=distance)
                normalise = cute.arch.rcp_approx(total)
                for j in cutlass.range_constexpr(HEAD_DIM // 8):
                    for e in cutlass.range_constexpr(2):
                        out[4 * j + 2 * r + e] = (O[4 * j + 2 * r + e] * normalise).to(self.dtype)
                if query + 8 * r < seqlen:
                    if cutlass.const_expr(lse is not None):  # noqa: SIM102 (one is known when compiling)
                        if tidx % 4 == 0:
                            log_sum = cute.math.log(total, fastmath=True)
                            lse[batch, head, query + 8 * r] = row_max[r] * scale + log_sum
                    cute.autovec_copy(out[(None, r, None), 0, 0], gO[(None, r, None), 0, 0])

    @cute.jit
    def start_qk(self, S, q_desc, k_desc):
        """S = Q K^T, committed as one group; nothing is waited for."""
        mma = make_qk_mma(self.dtype)
        warpgroup.fence()
        for step in cutlass.range_constexpr(HEAD_DIM // MMA_K):
            mma.set(warpgroup.Field.ACCUMULATE, step > 0)  # the first step overwrites the old S
            cute.gemm(mma, S, q_desc[None, None, step], k_desc[None, None, step], S)
        warpgroup.commit_group()

    @cute.jit
    def start_pv(self, O, P, v_desc):  # noqa: E741
        """O += P V, committed as one group; nothing is waited for."""
        mma = make_pv_mma(self.dtype)
        warpgroup.fence()  # P and O were written by ordinary instructions
        mma.set(warpgroup.Field.ACCUMULATE, True)
        for step in cutlass.range_constexpr(TILE_N // MMA_K):
            cute.gemm(mma, O, P[None, None, step], v_desc[None, None, step], O)
        warpgroup.commit_group()

    @cute.jit
    def step(self, S, P, O, q_desc, k_desc, v_desc, control, i):  # noqa: E741
        """Start the QK of tile i and the PV of the one before; return when S is there. PV goes on."""
        k_full, k_empty, v_full = control.k_full.data_ptr(), control.k_empty.data_ptr(), control.v_full.data_ptr()
        slot, before = i % STAGES, (i - 1) % STAGES
        cute.arch.mbarrier_wait(k_full + slot, i // STAGES & 1)
        self.start_qk(S, q_desc, k_desc[None, None, None, slot])
        cute.arch.mbarrier_wait(v_full + before, (i - 1) // STAGES & 1)
        self.start_pv(O, P, v_desc[None, None, None, before])
        warpgroup.wait_group(1)
        arrive(k_empty + slot)

    @cute.jit
    def finish(self, S, P, O, factor, v_empty, i):  # noqa: E741
        """Wait for that PV, hand V back, make the new P and bring O to the new maximum."""
        warpgroup.wait_group(0)
        arrive(v_empty + (i - 1) % STAGES)
        convert(S, P)
        rescale(O, factor)


Attention.kernel.set_name_prefix("h10_causal", remove_cutlass_symbol=True, keep_mangled_name=False)
