"""Stage 7, interleaved: P V of one tile, then at once Q K^T of the next, so that the tensor core always has work.

So far Q K^T of tile i + 1 waited until tile i was done for both q. But S is free as soon as P V has read P. So the mma
warp starts with Q K^T of tile 0 for both q, and then goes on in pairs: P V of tile i, Q K^T of tile i + 1, for q = 0,
for q = 1. While one q takes its exponentials, the other one's pair is on the tensor core.

K and V tiles are loaded as one sequence of *tokens*, K0 V0 K1 V1 ..., into three slots of shared memory in turn: token
t goes to slot t % 3. Every slot has its own pair of barriers, full and empty.

A CTA computes 256 query rows: two Q tiles, called q = 0 and q = 1, each with its own S, P and O in TMEM (all 512
columns are taken), its own four softmax warps and its own barriers. K and V are loaded once and multiplied twice.

Ten warps with three roles. They meet at mbarriers only, one for each thing that one role leaves for another:

    load      one warp   TMA brings both Q, then token after token 128 rows of K or of V into shared memory
    mma       one warp   S = Q K^T and O += P V on the tensor core, from and into tensor memory (TMEM)
    softmax   four warps for each q, thread ``r`` owns query row ``r`` of the 256 rows of this CTA:
                  mask     in a last tile of fewer than 128 keys: sets the scores of the others to -inf
                  max      reads its row of S and finds the row maximum
                  rescale  multiplies its row of O in TMEM by exp(old maximum - new maximum)
                  exp      reads S again, writes P = exp(S - maximum) as 16-bit numbers into TMEM, over the scores
                  epilogue, once: divides O by the row sum and writes it out

A barrier ``..._full`` says "it is there", ``..._empty`` says "its place is free". Every role goes through all tiles of
128 keys by itself, so every barrier sees the same number of phases from both of its sides.

No role waits any longer until P V is done before Q K^T of the next tile overwrites P. The tensor core does one thread's
MMAs in the order of issue, and this kernel counts on it, as FlashAttention-4 does. The PTX ISA promises as much only
for MMAs with the same accumulator and shape ("Pipelined tcgen05 Instructions").

Any sequence length will do. TMA fills rows beyond the end with zeros; keys there are masked, rows of O not stored.

    q, k, v, o   (batch, seqlen, heads, 128)  bf16 or fp16, the last dimension contiguous
    lse          (batch, heads, seqlen)       fp32, or None: log of the sum of exp(scores), natural logarithm
    scale        fp32, finite and not negative: what the scores are multiplied by, usually 1 / sqrt(128)

PTX ISA: "TensorCore 5th Generation Family Instructions" (tcgen05), "cp.async.bulk.tensor", "mbarrier", "Async proxy".
"""
# mypy: ignore-errors
# (what the DSL's objects are is known when a kernel is traced, not before)

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.experimental import iket
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator

TILE_M = 128  # query rows a Q tile: one TMEM lane, and one thread, for each
Q_TILES = 2  # Q tiles a CTA
KV_SLOTS = 3  # of one K or V tile each; 227 KB of shared memory would hold two more
TILE_N = 128  # keys a step
HEAD_DIM = 128
ROLES = {  # role: its warps; warp w reaches TMEM lanes 32 (w % 4) to 32 (w % 4) + 31
    "softmax": (0, 1, 2, 3, 4, 5, 6, 7),  # 0 to 3 for q = 0, 4 to 7 for q = 1
    "load": (8,),
    "mma": (9,),
}
THREADS = 32 * 10
MMA_K = 16  # one tcgen05.mma multiplies 16 columns of A with 16 of B
CHUNK = 8  # columns that a thread takes from TMEM at a time; 8 of 16 bits are 4 columns, or one 16-byte store

MAX_GRID_YZ = 65535  # the grid is (query tiles, heads, batches)
TILE_BYTES = 128 * 128 * 2  # Q, K and V tiles all have this size

# ---- the facts of this stage, as data: tests hold them against the compiled kernel, figures draw them ---------------

SMEM = {  # name: (offset, bytes) in the CTA's dynamic shared memory
    "Q0": (0, TILE_BYTES),
    "Q1": (TILE_BYTES, TILE_BYTES),
    "KV0": (2 * TILE_BYTES, TILE_BYTES),
    "KV1": (3 * TILE_BYTES, TILE_BYTES),
    "KV2": (4 * TILE_BYTES, TILE_BYTES),
    "q_full": (5 * TILE_BYTES, 8),
    "kv_full0": (5 * TILE_BYTES + 8, 8),
    "kv_full1": (5 * TILE_BYTES + 16, 8),
    "kv_full2": (5 * TILE_BYTES + 24, 8),
    "kv_empty0": (5 * TILE_BYTES + 32, 8),
    "kv_empty1": (5 * TILE_BYTES + 40, 8),
    "kv_empty2": (5 * TILE_BYTES + 48, 8),
    "s_full0": (5 * TILE_BYTES + 56, 8),
    "s_full1": (5 * TILE_BYTES + 64, 8),
    "p_full0": (5 * TILE_BYTES + 72, 8),
    "p_full1": (5 * TILE_BYTES + 80, 8),
    "o_full0": (5 * TILE_BYTES + 88, 8),
    "o_full1": (5 * TILE_BYTES + 96, 8),
    "tmem_address": (5 * TILE_BYTES + 104, 4),
}

TMEM_COLUMNS = 512  # all there are, so one CTA fits on one SM
TMEM = {  # name: (first column, columns), all 128 lanes high, fp32
    "S0": (0, TILE_N),
    "S1": (128, TILE_N),
    "O0": (256, HEAD_DIM),
    "O1": (384, HEAD_DIM),
}
# P lies over the low half of S: chunk c of P takes columns 4 c to 4 c + 3. When it is written, scores 0 to 8 c + 7 of
# the row have been read for the last time. So every store covers only scores that are used up.
TMEM_ALIASES = {"P0": (0, TILE_N // 2), "P1": (128, TILE_N // 2)}

BARRIERS = {  # name: arrivals that complete a phase, who makes them, who waits, phases for n KV tiles
    "q_full": {"count": 1, "bytes": 2 * TILE_BYTES, "arrives": "TMA (Q0, Q1)", "waits": "mma", "phases": "1"},
    "kv_full0": {"count": 1, "bytes": TILE_BYTES, "arrives": "TMA (K/V)", "waits": "mma", "phases": "(2 * n + 2) // 3"},
    "kv_full1": {"count": 1, "bytes": TILE_BYTES, "arrives": "TMA (K/V)", "waits": "mma", "phases": "(2 * n + 1) // 3"},
    "kv_full2": {"count": 1, "bytes": TILE_BYTES, "arrives": "TMA (K/V)", "waits": "mma", "phases": "2 * n // 3"},
    "kv_empty0": {"count": 1, "bytes": 0, "arrives": "tensor core", "waits": "load", "phases": "(2 * n + 2) // 3"},
    "kv_empty1": {"count": 1, "bytes": 0, "arrives": "tensor core", "waits": "load", "phases": "(2 * n + 1) // 3"},
    "kv_empty2": {"count": 1, "bytes": 0, "arrives": "tensor core", "waits": "load", "phases": "2 * n // 3"},
    "s_full0": {"count": 1, "bytes": 0, "arrives": "tensor core (Q0 K^T)", "waits": "softmax of 0", "phases": "n"},
    "s_full1": {"count": 1, "bytes": 0, "arrives": "tensor core (Q1 K^T)", "waits": "softmax of 1", "phases": "n"},
    "p_full0": {"count": 4, "bytes": 0, "arrives": "softmax of 0, one lane a warp", "waits": "mma", "phases": "n"},
    "p_full1": {"count": 4, "bytes": 0, "arrives": "softmax of 1, one lane a warp", "waits": "mma", "phases": "n"},
    "o_full0": {"count": 1, "bytes": 0, "arrives": "tensor core (last P0 V)", "waits": "softmax of 0", "phases": "1"},
    "o_full1": {"count": 1, "bytes": 0, "arrives": "tensor core (last P1 V)", "waits": "softmax of 1", "phases": "1"},
}

RANGES = ("setup", "load", "qk", "pv", "softmax", "mask", "max", "rescale", "exp", "epilogue")  # IKET ranges, in order


def check(batch: int, seqlen: int, heads: int, head_dim: int = HEAD_DIM, *, causal: bool = False, scale: float = 1.0):
    """Raise ValueError, naming the value and the remedy, unless this stage can compute that problem."""
    if causal:
        raise ValueError("causal = True: stages 1 to 22 of the ladder are dense; pass causal=False")
    if head_dim != HEAD_DIM:
        raise ValueError(
            f"head_dim = {head_dim}: this stage knows {HEAD_DIM} only; pad q, k and v with zeros to {HEAD_DIM}"
        )
    if not 1 <= batch <= MAX_GRID_YZ or not 1 <= heads <= MAX_GRID_YZ:
        raise ValueError(f"batch = {batch}, heads = {heads}: each must be 1 to {MAX_GRID_YZ}; split larger ones")
    if seqlen < 1:
        raise ValueError(f"seqlen = {seqlen}: there must be at least one key")
    if not 0.0 <= scale < float("inf"):
        raise ValueError(f"scale = {scale} must be finite and not negative; the usual one is {HEAD_DIM**-0.5:.6f}")


# ---- layouts --------------------------------------------------------------------------------------------------------
# With the 128-byte swizzle the tensor core reads atoms of 8 rows x 128 bytes, 1024 bytes in one piece each. Call these
# under @cute.jit; layout(coordinate) is an offset in elements, swizzled. Mode 0 is the operand of one instruction.


def make_qk_mma(dtype: type[cutlass.Numeric]) -> cute.TiledMma:
    """S (128 x 128) += Q (128 x 16) K^T (16 x 128): both operands lie with the head dimension contiguous (K-major)."""
    shape = (TILE_M, TILE_N, MMA_K)
    major_q, major_k = OperandMajorMode.K, OperandMajorMode.K
    source = tcgen05.OperandSource.SMEM
    op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, source, major_q, major_k)
    return cute.make_tiled_mma(op)


def make_pv_mma(dtype: type[cutlass.Numeric]) -> cute.TiledMma:
    """O (128 x 128) += P (128 x 16) V (16 x 128): the sum runs over keys, but V lies with the other one contiguous."""
    shape = (TILE_M, HEAD_DIM, MMA_K)
    major_p, major_v = OperandMajorMode.K, OperandMajorMode.MN
    source = tcgen05.OperandSource.TMEM  # of A; B is always in shared memory
    op = tcgen05.MmaF16BF16Op(dtype, cutlass.Float32, shape, tcgen05.CtaGroup.ONE, source, major_p, major_v)
    return cute.make_tiled_mma(op)


def q_smem_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """Q in shared memory as the A operand of Q K^T: ((128 rows, 16), 1, (4, 2) steps: 4 in each 64 columns)."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, dtype)
    return tcgen05.tile_to_mma_shape(atom, make_qk_mma(dtype).partition_shape_A((TILE_M, HEAD_DIM)))


def k_smem_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """K in shared memory as the B operand of Q K^T: ((128 keys, 16), 1, (4, 2) steps: 4 in each 64 columns)."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, dtype)
    return tcgen05.tile_to_mma_shape(atom, make_qk_mma(dtype).partition_shape_B((TILE_N, HEAD_DIM)))


def v_smem_layout(dtype: type[cutlass.Numeric]) -> cute.ComposedLayout:
    """V in shared memory as the B operand of P V: (((64, 2) columns, 16), 1, 8 steps along the keys)."""
    atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.MN_SW128, dtype)
    return tcgen05.tile_to_mma_shape(atom, make_pv_mma(dtype).partition_shape_B((HEAD_DIM, TILE_N)), order=(2, 1))


def bshd(t: cute.Tensor) -> cute.Tensor:
    """A (batch, seqlen, heads, 128) tensor with what the interface promises said to the compiler: the last dimension is
    128 long and contiguous, and every row starts at a multiple of 16 bytes, as TMA and 16-byte stores need it."""
    batch, seqlen, heads, _ = t.shape
    stride = tuple(cute.assume(x, divby=8) for x in t.stride[:3])
    return cute.make_tensor(
        t.iterator.align(16), cute.make_layout((batch, seqlen, heads, HEAD_DIM), stride=(*stride, 1))
    )


def tma_tiles(tma: cute.CopyAtom, shared: cute.Tensor, coords: cute.Tensor) -> tuple[cute.Tensor, cute.Tensor]:
    """Both ends of a TMA copy: the tile in shared memory, and (one tile, tile number ...) as TMA coordinates."""
    return cpasync.tma_partition(
        tma, 0, cute.make_layout(1), cute.group_modes(shared, 0, 3), cute.group_modes(coords, 0, 3)
    )


def ring(token: cutlass.Int32) -> tuple[cutlass.Int32, cutlass.Int32]:
    """Where a token goes: its slot, and the parity of the phase that it completes there (which lap round the ring)."""
    return token % KV_SLOTS, token // KV_SLOTS & 1


@cute.struct
class Control:
    """The few words of shared memory that are not operands."""

    q_full: cute.struct.MemRange[cutlass.Int64, 1]
    kv_full: cute.struct.MemRange[cutlass.Int64, KV_SLOTS]
    kv_empty: cute.struct.MemRange[cutlass.Int64, KV_SLOTS]
    s_full: cute.struct.MemRange[cutlass.Int64, Q_TILES]
    p_full: cute.struct.MemRange[cutlass.Int64, Q_TILES]
    o_full: cute.struct.MemRange[cutlass.Int64, Q_TILES]
    tmem_address: cutlass.Int32  # where tcgen05.alloc leaves the address it chose


class Attention:
    """``cute.compile(Attention(), q, k, v, o, lse, scale, stream)``; batch, seqlen and heads stay dynamic."""

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

        # TMA descriptors: which box of global memory lands in which layout of shared memory.
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        qk_mma, qk_tile = make_qk_mma(self.dtype), (TILE_M, TILE_N, HEAD_DIM)
        pv_mma, pv_tile = make_pv_mma(self.dtype), (TILE_M, HEAD_DIM, TILE_N)
        tma_q, q_coords = cute.nvgpu.make_tiled_tma_atom_A(load, q_mat, q_smem_layout(self.dtype), qk_tile, qk_mma)
        tma_k, k_coords = cute.nvgpu.make_tiled_tma_atom_B(load, k_mat, k_smem_layout(self.dtype), qk_tile, qk_mma)
        tma_v, v_coords = cute.nvgpu.make_tiled_tma_atom_B(load, v_mat, v_smem_layout(self.dtype), pv_tile, pv_mma)

        batch, seqlen, heads, _ = q.shape
        self.kernel(tma_q, q_coords, tma_k, k_coords, tma_v, v_coords, o, lse, scale).launch(
            grid=(cute.ceil_div(seqlen, Q_TILES * TILE_M), heads, batch),
            block=(THREADS, 1, 1),
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
        thread, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        q_own, row = warp // 4, thread % TILE_M  # this softmax thread's Q tile, and its row of it
        q_pair, head, batch = cute.arch.block_idx()

        # ==== setup: shared memory, barriers, tensor memory ==========================================================
        iket.range_push("setup")
        smem = SmemAllocator()
        q_tiles = cute.make_layout(Q_TILES, stride=TILE_M * HEAD_DIM)
        kv_slots = cute.make_layout(KV_SLOTS, stride=TILE_N * HEAD_DIM)
        q_layout, k_layout, v_layout = q_smem_layout(self.dtype), k_smem_layout(self.dtype), v_smem_layout(self.dtype)
        sQ = smem.allocate_tensor(self.dtype, cute.append(q_layout.outer, q_tiles), 1024, q_layout.inner)
        sK = smem.allocate_tensor(self.dtype, cute.append(k_layout.outer, kv_slots), 1024, k_layout.inner)
        sV = cute.make_tensor(sK.iterator, cute.append(v_layout.outer, kv_slots))  # the same slots
        control = smem.allocate(Control)
        q_full, kv_full, kv_empty = control.q_full.data_ptr(), control.kv_full.data_ptr(), control.kv_empty.data_ptr()
        s_full, p_full, o_full = control.s_full.data_ptr(), control.p_full.data_ptr(), control.o_full.data_ptr()

        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(q_full, BARRIERS["q_full"]["count"])
                for n in cutlass.range_constexpr(KV_SLOTS):
                    cute.arch.mbarrier_init(kv_full + n, BARRIERS[f"kv_full{n}"]["count"])
                    cute.arch.mbarrier_init(kv_empty + n, BARRIERS[f"kv_empty{n}"]["count"])
                for n in cutlass.range_constexpr(Q_TILES):
                    cute.arch.mbarrier_init(s_full + n, BARRIERS[f"s_full{n}"]["count"])
                    cute.arch.mbarrier_init(p_full + n, BARRIERS[f"p_full{n}"]["count"])
                    cute.arch.mbarrier_init(o_full + n, BARRIERS[f"o_full{n}"]["count"])
            cute.arch.mbarrier_init_fence()  # TMA and the tensor core must find them initialised
            cute.arch.alloc_tmem(TMEM_COLUMNS, control.tmem_address.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, control.tmem_address.ptr)

        # ---- tiles as TMA sees them: (one tile, tile number) --------------------------------------------------------
        qk_mma, pv_mma = make_qk_mma(self.dtype), make_pv_mma(self.dtype)
        gQ = cute.local_tile(q_coords[None, None, head, batch], (TILE_M, HEAD_DIM), (None, 0))
        gK = cute.local_tile(k_coords[None, None, head, batch], (TILE_N, HEAD_DIM), (None, 0))
        gV = cute.local_tile(v_coords[None, None, head, batch], (HEAD_DIM, TILE_N), (0, None))
        to_sQ, from_gQ = tma_tiles(tma_q, sQ, qk_mma.get_slice(0).partition_A(gQ))
        to_sK, from_gK = tma_tiles(tma_k, sK, qk_mma.get_slice(0).partition_B(gK))
        to_sV, from_gV = tma_tiles(tma_v, sV, pv_mma.get_slice(0).partition_B(gV))

        # ---- operands as the tensor core sees them: descriptors of shared memory, addresses in TMEM -----------------
        q_desc, k_desc = qk_mma.make_fragment_A(sQ), qk_mma.make_fragment_B(sK)
        v_desc = pv_mma.make_fragment_B(sV)
        s_shape = qk_mma.partition_shape_C((TILE_M, TILE_N))
        o_shape = pv_mma.partition_shape_C((TILE_M, HEAD_DIM))
        # (S, O and P of q = 1 lie 128 columns, or twice as many 16-bit numbers, after those of q = 0)
        by_q, by_q16 = cute.make_layout(Q_TILES, stride=128), cute.make_layout(Q_TILES, stride=2 * 128)
        tS = cute.make_tensor(tmem + TMEM["S0"][0], cute.append(qk_mma.make_fragment_C(s_shape).layout, by_q))
        tO = cute.make_tensor(tmem + TMEM["O0"][0], cute.append(pv_mma.make_fragment_C(o_shape).layout, by_q))
        p_cells = tmem + TMEM_ALIASES["P0"][0]
        p_layout = pv_mma.make_fragment_A(pv_mma.partition_shape_A((TILE_M, TILE_N))).layout
        tP = cute.make_tensor(cute.recast_ptr(p_cells, dtype=self.dtype), cute.append(p_layout, by_q16))

        # ---- rows as this thread sees them: (8 columns, chunk) of its TMEM lane, (4 columns, chunk) of P, of O ------
        S_chunks = cute.zipped_divide(tS[None, None, None, q_own], ((TILE_M, CHUNK),))
        O_chunks = cute.zipped_divide(tO[None, None, None, q_own], ((TILE_M, CHUNK),))
        tP32 = cute.make_tensor(p_cells, tS.layout)  # 32-bit cells
        P_chunks = cute.zipped_divide(tP32[None, None, None, q_own], ((TILE_M, CHUNK // 2),))
        ld_atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(CHUNK)), cutlass.Float32)
        st_atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(CHUNK)), cutlass.Float32)
        st_p_atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(CHUNK // 2)), cutlass.Float32)
        tmem_load = tcgen05.make_tmem_copy(ld_atom, S_chunks[None, 0]).get_slice(row)
        tmem_store = tcgen05.make_tmem_copy(st_atom, S_chunks[None, 0]).get_slice(row)
        tmem_store_p = tcgen05.make_tmem_copy(st_p_atom, P_chunks[None, 0]).get_slice(row)
        S_row = tmem_load.partition_S(S_chunks)
        S_row_out = tmem_store.partition_D(S_chunks)
        O_row = tmem_load.partition_S(O_chunks)
        O_row_out = tmem_store.partition_D(O_chunks)
        P_row_out = tmem_store_p.partition_D(P_chunks)
        coords = qk_mma.get_slice(0).partition_C(cute.make_identity_tensor((TILE_M, TILE_N)))
        fragment = tmem_load.partition_D(cute.zipped_divide(coords, ((TILE_M, CHUNK),))[None, 0])
        x = cute.make_rmem_tensor(fragment.shape, cutlass.Float32)
        x16 = cute.make_rmem_tensor(CHUNK, self.dtype)
        x16_cells = cute.make_tensor(cute.recast_ptr(x16.iterator, dtype=cutlass.Float32), ((CHUNK // 2, 1), 1))
        iket.range_pop()

        tiles = cute.size(gK, mode=[2])

        # ==== load ===================================================================================================
        if warp == ROLES["load"][0]:
            iket.range_push("load")
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(q_full, BARRIERS["q_full"]["bytes"])
            for q in cutlass.range_constexpr(Q_TILES):
                cute.copy(tma_q, from_gQ[None, Q_TILES * q_pair + q], to_sQ[None, q], tma_bar_ptr=q_full)
            iket.range_pop()
            for i in cutlass.range(tiles, unroll=1):
                # ---- K of tile i is token 2 i, V is token 2 i + 1 --------------------------------------------------
                slot, parity = ring(2 * i)
                cute.arch.mbarrier_wait(kv_empty + slot, parity ^ 1)  # the token before it is used up; at once in lap 0
                iket.range_push("load")
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(kv_full + slot, BARRIERS["kv_full0"]["bytes"])
                cute.copy(tma_k, from_gK[None, i], to_sK[None, slot], tma_bar_ptr=kv_full + slot)
                iket.range_pop()

                slot, parity = ring(2 * i + 1)
                cute.arch.mbarrier_wait(kv_empty + slot, parity ^ 1)
                iket.range_push("load")
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(kv_full + slot, BARRIERS["kv_full0"]["bytes"])
                cute.copy(tma_v, from_gV[None, i], to_sV[None, slot], tma_bar_ptr=kv_full + slot)
                iket.range_pop()

        # ==== mma ====================================================================================================
        if warp == ROLES["mma"][0]:
            cute.arch.mbarrier_wait(q_full, 0)
            # ---- qk of tile 0: S = Q K^T ----------------------------------------------------------------------------
            slot, parity = ring(0)
            cute.arch.mbarrier_wait(kv_full + slot, parity)
            for q in cutlass.range_constexpr(Q_TILES):
                iket.range_push("qk")
                s_q = tS[None, None, None, q]
                for step in cutlass.range_constexpr(HEAD_DIM // MMA_K):
                    qk_mma.set(tcgen05.Field.ACCUMULATE, step > 0)  # the first step overwrites the old S
                    cute.gemm(qk_mma, s_q, q_desc[None, None, step, q], k_desc[None, None, step, slot], s_q)
                with cute.arch.elect_one():
                    tcgen05.commit(s_full + q)
                iket.range_pop()
            with cute.arch.elect_one():
                tcgen05.commit(kv_empty + slot)

            for i in cutlass.range(tiles, unroll=1):
                v_slot, v_parity = ring(2 * i + 1)
                cute.arch.mbarrier_wait(kv_full + v_slot, v_parity)
                k_slot, k_parity = ring(2 * i + 2)
                for q in cutlass.range_constexpr(Q_TILES):
                    # ---- pv of tile i: O += P V --------------------------------------------------------------------
                    # All rows of P are written, all reads of S and all writes of O are done, before the MMAs start.
                    cute.arch.mbarrier_wait(p_full + q, i & 1)
                    prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                    iket.range_push("pv")
                    o_q = tO[None, None, None, q]
                    for step in cutlass.range_constexpr(TILE_N // MMA_K):
                        pv_mma.set(tcgen05.Field.ACCUMULATE, (i > 0) | (step > 0))  # the first of all overwrites O
                        cute.gemm(pv_mma, o_q, tP[None, None, step, q], v_desc[None, None, step, v_slot], o_q)
                    with cute.arch.elect_one():
                        if i == tiles - 1:
                            tcgen05.commit(o_full + q)
                        if cutlass.const_expr(q == Q_TILES - 1):
                            tcgen05.commit(kv_empty + v_slot)
                    iket.range_pop()

                    # ---- qk of tile i + 1: S = Q K^T ---------------------------------------------------------------
                    if i + 1 < tiles:
                        if cutlass.const_expr(q == 0):
                            cute.arch.mbarrier_wait(kv_full + k_slot, k_parity)
                        # P V may still be under way, but has read P when this overwrites it (see above).
                        iket.range_push("qk")
                        s_q = tS[None, None, None, q]
                        for step in cutlass.range_constexpr(HEAD_DIM // MMA_K):
                            qk_mma.set(tcgen05.Field.ACCUMULATE, step > 0)  # the first step overwrites the old S
                            cute.gemm(qk_mma, s_q, q_desc[None, None, step, q], k_desc[None, None, step, k_slot], s_q)
                        with cute.arch.elect_one():
                            tcgen05.commit(s_full + q)  # it speaks for all MMAs of its thread: P V of tile i, too
                            if cutlass.const_expr(q == Q_TILES - 1):
                                tcgen05.commit(kv_empty + k_slot)
                        iket.range_pop()

        # ==== softmax ================================================================================================
        if warp <= ROLES["softmax"][-1]:
            scale = cute.arch.fmax(scale, 2.0**-126)  # a masked score is -inf, and 0 * -inf would be NaN
            row_max = -cutlass.Float32.inf
            row_sum = cutlass.Float32(0.0)
            for i in cutlass.range(tiles, unroll=1):
                cute.arch.mbarrier_wait(s_full + q_own, i & 1)  # S of this tile, and O of the one before
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)

                iket.range_push("softmax")
                # ---- mask: keys beyond the end -----------------------------------------------------------------------
                keys = k_coords.shape[0] - i * TILE_N
                if keys < TILE_N:
                    iket.range_push("mask")
                    for chunk in cutlass.range(keys // CHUNK, TILE_N // CHUNK, unroll=1):
                        cute.copy(tmem_load, S_row[None, None, chunk], x)
                        cute.arch.fence_view_async_tmem_load()
                        for j in cutlass.range_constexpr(CHUNK):
                            x[j] = cutlass.select_(chunk * CHUNK + j < keys, x[j], -cutlass.Float32.inf)
                        cute.copy(tmem_store, x, S_row_out[None, None, chunk])
                    cute.arch.fence_view_async_tmem_store()
                    iket.range_pop()

                # ---- max: first pass over S --------------------------------------------------------------------------
                iket.range_push("max")
                new_max = row_max
                for chunk in cutlass.range(TILE_N // CHUNK, unroll_full=True):
                    cute.copy(tmem_load, S_row[None, None, chunk], x)
                    cute.arch.fence_view_async_tmem_load()
                    for j in cutlass.range_constexpr(CHUNK):
                        new_max = cute.arch.fmax(new_max, x[j])
                iket.range_pop()

                # ---- rescale: what was summed under the old maximum --------------------------------------------------
                iket.range_push("rescale")
                if i > 0:
                    factor = cute.math.exp((row_max - new_max) * scale, fastmath=True)
                    row_sum *= factor
                    for chunk in cutlass.range(HEAD_DIM // CHUNK, unroll_full=True):
                        cute.copy(tmem_load, O_row[None, None, chunk], x)
                        cute.arch.fence_view_async_tmem_load()
                        x.store(x.load() * factor)
                        cute.copy(tmem_store, x, O_row_out[None, None, chunk])
                    cute.arch.fence_view_async_tmem_store()
                row_max = new_max
                iket.range_pop()

                # ---- exp: second pass over S, P into TMEM over the scores that were read -----------------------------
                iket.range_push("exp")
                for chunk in cutlass.range(TILE_N // CHUNK, unroll_full=True):
                    cute.copy(tmem_load, S_row[None, None, chunk], x)
                    cute.arch.fence_view_async_tmem_load()
                    for j in cutlass.range_constexpr(CHUNK):
                        p = cute.math.exp((x[j] - row_max) * scale, fastmath=True)
                        row_sum += p
                        x16[j] = p.to(self.dtype)
                    cute.copy(tmem_store_p, x16_cells, P_row_out[None, None, chunk])
                # The tensor core reads P from TMEM; stores to TMEM are asynchronous. Every thread waits for its own.
                cute.arch.fence_view_async_tmem_store()
                iket.range_pop()
                iket.range_pop()
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_full + q_own)

            # ---- epilogue: O / row sum, and the LSE -----------------------------------------------------------------
            cute.arch.mbarrier_wait(o_full + q_own, 0)
            prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
            iket.range_push("epilogue")
            normalise = cute.arch.rcp_approx(row_sum)
            query = (Q_TILES * q_pair + q_own) * TILE_M + row
            O_out = cute.zipped_divide(o[batch, query, head, None], (CHUNK,))
            for chunk in cutlass.range(HEAD_DIM // CHUNK, unroll_full=True):
                cute.copy(tmem_load, O_row[None, None, chunk], x)
                cute.arch.fence_view_async_tmem_load()
                for j in cutlass.range_constexpr(CHUNK):
                    x16[j] = (x[j] * normalise).to(self.dtype)
                if query < o.shape[1]:
                    cute.autovec_copy(x16, O_out[None, chunk])
            if cutlass.const_expr(lse is not None):
                row_lse = row_max * scale + cute.math.log(row_sum, fastmath=True)
                if query < o.shape[1]:
                    lse[batch, head, query] = row_lse
            iket.range_pop()

        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()  # every warp has read its lanes before they are given back
        if warp == 0:
            prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)


Attention.kernel.set_name_prefix("s07_interleave", remove_cutlass_symbol=True, keep_mangled_name=False)
