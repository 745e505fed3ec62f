"""A warp-specialised GEMM with three planted bugs, to be found. The kernel of the page on debugging.

It is `gemm_ws`, line by line, but for three places. ``Gemm(mended=("count", "slot", "sums"))`` has none of the bugs:

    count   the barrier that gives a sum back counts threads, but one lane a warp arrives: the kernel hangs
    slot    a slot is given back before the MMAs that read it are issued: TMA may overwrite what they still read
    sums    the two sums overlap in tensor memory: a tile of C may be overwritten while it is carried home

    A (m, k) and B (n, k)  bf16 or fp16, k contiguous
    C (m, n)               fp32, n contiguous
    m, n multiples of 128, k a multiple of 64
"""
# mypy: ignore-errors
# (what the DSL's objects are is known when a kernel is traced, not before)

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator

from attnbook.kernels.blackwell.gemm import check

__all__ = ["BUGS", "Gemm", "check"]

BUGS = ("count", "slot", "sums")

TILE_M = 128  # rows of C a CTA: one TMEM lane, and one epilogue thread, for each
TILE_N = 128  # columns of a tile of C: as many TMEM columns of fp32
TILE_K = 64  # how much of k one slot holds: 64 elements of 16 bits are one 128-byte swizzle row
SLOTS = 3  # of A and B in shared memory
SUMS = 2  # in TMEM
ROLES = {"epilogue": (0, 1, 2, 3), "load": (4,), "mma": (5,)}  # warp w reaches TMEM lanes 32 (w % 4) and on
THREADS = 32 * 6
TMEM_COLUMNS = SUMS * TILE_N
EPILOGUE_COLUMNS = 32  # columns of C that a thread holds in registers at a time


@cute.struct
class Control:
    """The few words of shared memory that are not operands."""

    full: cute.struct.MemRange[cutlass.Int64, SLOTS]
    empty: cute.struct.MemRange[cutlass.Int64, SLOTS]
    acc_full: cute.struct.MemRange[cutlass.Int64, SUMS]
    acc_empty: cute.struct.MemRange[cutlass.Int64, SUMS]
    tmem_address: cutlass.Int32  # where tcgen05.alloc leaves the address it chose


class Gemm:
    """``cute.compile(Gemm(mended), a, b, c)``; mended: the names in BUGS of what has been put right."""

    def __init__(self, mended: tuple[str, ...] = ()):
        unknown = set(mended) - set(BUGS)
        if unknown:
            raise ValueError(f"mended = {mended}: there is no bug {sorted(unknown)[0]!r}; they are {', '.join(BUGS)}")
        self.mended = mended

    def make_mma(self) -> cute.TiledMma:
        """One 128 x 128 x 16 tcgen05.mma: both operands in shared memory, k contiguous, fp32 sums in TMEM."""
        return cute.make_tiled_mma(
            tcgen05.MmaF16BF16Op(
                self.dtype,
                cutlass.Float32,
                (TILE_M, TILE_N, 16),
                tcgen05.CtaGroup.ONE,
                tcgen05.OperandSource.SMEM,
                OperandMajorMode.K,
                OperandMajorMode.K,
            )
        )

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        self.dtype = a.element_type
        tiled_mma = self.make_mma()
        tile = (TILE_M, TILE_N, TILE_K)

        atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, a.element_type)
        a_layout = tcgen05.tile_to_mma_shape(atom, tiled_mma.partition_shape_A((TILE_M, TILE_K)))
        b_layout = tcgen05.tile_to_mma_shape(atom, tiled_mma.partition_shape_B((TILE_N, TILE_K)))

        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
        tma_a, a_coords = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_layout, tile, tiled_mma)
        tma_b, b_coords = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_layout, tile, tiled_mma)

        self.kernel(tma_a, a_coords, tma_b, b_coords, c).launch(
            grid=(cute.size(c, mode=[0]) // TILE_M, 1, 1),
            block=(THREADS, 1, 1),
        )

    @cute.kernel
    def kernel(
        self,
        tma_a: cute.CopyAtom,
        a_coords: cute.Tensor,
        tma_b: cute.CopyAtom,
        b_coords: cute.Tensor,
        c: cute.Tensor,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile_m, _, _ = cute.arch.block_idx()
        tiles = cute.size(c, mode=[1]) // TILE_N  # of C, for this CTA
        tiled_mma = self.make_mma()
        thr_mma = tiled_mma.get_slice(0)

        # ==== setup: shared memory, barriers, tensor memory ==========================================================
        smem = SmemAllocator()
        atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, self.dtype)
        a_slots = tcgen05.tile_to_mma_shape(atom, (*tiled_mma.partition_shape_A((TILE_M, TILE_K)), SLOTS))
        b_slots = tcgen05.tile_to_mma_shape(atom, (*tiled_mma.partition_shape_B((TILE_N, TILE_K)), SLOTS))
        sA = smem.allocate_tensor(self.dtype, a_slots.outer, 1024, a_slots.inner)
        sB = smem.allocate_tensor(self.dtype, b_slots.outer, 1024, b_slots.inner)
        control = smem.allocate(Control)
        full, empty = control.full.data_ptr(), control.empty.data_ptr()
        acc_full, acc_empty = control.acc_full.data_ptr(), control.acc_empty.data_ptr()
        epilogue_arrivals = 4 if cutlass.const_expr("count" in self.mended) else 128
        slot_bytes = (TILE_M + TILE_N) * TILE_K * 2

        if warp == 0:
            with cute.arch.elect_one():
                for i in cutlass.range_constexpr(SLOTS):
                    cute.arch.mbarrier_init(full + i, 1)
                    cute.arch.mbarrier_init(empty + i, 1)
                for i in cutlass.range_constexpr(SUMS):
                    cute.arch.mbarrier_init(acc_full + i, 1)
                    cute.arch.mbarrier_init(acc_empty + i, epilogue_arrivals)
            cute.arch.mbarrier_init_fence()  # the TMA unit and the tensor core must see them initialised
            cute.arch.alloc_tmem(TMEM_COLUMNS, control.tmem_address.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, control.tmem_address.ptr)

        # ==== who reads and writes what ==============================================================================
        gA = thr_mma.partition_A(cute.local_tile(a_coords, (TILE_M, TILE_K), (tile_m, None)))
        gB = thr_mma.partition_B(cute.local_tile(b_coords, (TILE_N, TILE_K), (None, None)))
        to_sA, from_gA = cpasync.tma_partition(
            tma_a, 0, cute.make_layout(1), cute.group_modes(sA, 0, 3), cute.group_modes(gA, 0, 3)
        )
        to_sB, from_gB = cpasync.tma_partition(
            tma_b, 0, cute.make_layout(1), cute.group_modes(sB, 0, 3), cute.group_modes(gB, 0, 3)
        )
        tCrA = tiled_mma.make_fragment_A(sA)  # descriptors, not data: the tensor core reads shared memory itself
        tCrB = tiled_mma.make_fragment_B(sB)
        one = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((TILE_M, TILE_N))).layout
        apart = TILE_N if cutlass.const_expr("sums" in self.mended) else TILE_N - EPILOGUE_COLUMNS
        tCtC = cute.make_tensor(tmem, cute.append(one, cute.make_layout(SUMS, stride=apart)))
        steps = cute.size(gA, mode=[3])  # along k, for each tile of C

        # ==== load ===================================================================================================
        if warp == ROLES["load"][0]:
            for t in cutlass.range(tiles * steps, unroll=1):
                slot, lap, tile_n, k = t % SLOTS, t // SLOTS & 1, t // steps, t % steps
                cute.arch.mbarrier_wait(empty + slot, lap ^ 1)  # at once in the first lap
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + slot, slot_bytes)
                cute.copy(tma_a, from_gA[None, k], to_sA[None, slot], tma_bar_ptr=full + slot)
                cute.copy(tma_b, from_gB[None, tile_n, k], to_sB[None, slot], tma_bar_ptr=full + slot)

        # ==== mma ====================================================================================================
        if warp == ROLES["mma"][0]:
            for tile_n in cutlass.range(tiles, unroll=1):
                place, round_ = tile_n % SUMS, tile_n // SUMS & 1
                cute.arch.mbarrier_wait(acc_empty + place, round_ ^ 1)
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                total = tCtC[None, None, None, place]
                for k in cutlass.range(steps, unroll=1):
                    t = tile_n * steps + k
                    slot, lap = t % SLOTS, t // SLOTS & 1
                    cute.arch.mbarrier_wait(full + slot, lap)
                    if cutlass.const_expr("slot" not in self.mended):
                        with cute.arch.elect_one():
                            tcgen05.commit(empty + slot)
                    for block in cutlass.range_constexpr(TILE_K // 16):
                        # The first block of a tile overwrites what was in TMEM; every later one adds to it.
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, (k > 0) | (block > 0))
                        cute.gemm(tiled_mma, total, tCrA[None, None, block, slot], tCrB[None, None, block, slot], total)
                    if cutlass.const_expr("slot" in self.mended):
                        with cute.arch.elect_one():
                            tcgen05.commit(empty + slot)
                with cute.arch.elect_one():
                    tcgen05.commit(acc_full + place)

        # ==== epilogue: TMEM -> registers -> global memory ===========================================================
        if warp <= ROLES["epilogue"][-1]:
            copy_op = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
            chunk = ((TILE_M, EPILOGUE_COLUMNS),)
            sum_0 = cute.zipped_divide(tCtC[None, None, None, 0], chunk)
            tmem_load = tcgen05.make_tmem_copy(copy_op, sum_0[None, 0]).get_slice(tidx)
            for tile_n in cutlass.range(tiles, unroll=1):
                place, round_ = tile_n % SUMS, tile_n // SUMS & 1
                cute.arch.mbarrier_wait(acc_full + place, round_)
                prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
                gC = thr_mma.partition_C(cute.local_tile(c, (TILE_M, TILE_N), (tile_m, tile_n)))
                source = tmem_load.partition_S(cute.zipped_divide(tCtC[None, None, None, place], chunk))
                target = tmem_load.partition_D(cute.zipped_divide(gC, chunk))
                registers = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
                for i in cutlass.range_constexpr(TILE_N // EPILOGUE_COLUMNS):
                    cute.copy(tmem_load, source[None, None, i], registers)
                    cute.arch.fence_view_async_tmem_load()
                    cute.autovec_copy(registers, target[None, None, i])
                prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(acc_empty + place)

        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()  # every warp has read its lanes before they are given back
        if warp == 0:
            prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)


Gemm.kernel.set_name_prefix("buggy", remove_cutlass_symbol=True, keep_mangled_name=False)
