"""A plain tcgen05 GEMM: ``C = A @ B.T`` with one 128 x 128 tile of C a CTA, and nothing clever in it.

It is the smallest kernel that uses every part of the machine that the ladder builds on: TMA brings a tile of A and a
tile of B into shared memory, one thread starts the tensor core, the sum grows in tensor memory (TMEM), and 128 threads
carry it home. The four steps follow one another; nothing overlaps.

    A (m, k) and B (n, k)  bf16 or fp16, k contiguous
    C (m, n)               fp32, n contiguous
    m, n multiples of 128, k a multiple of 64

PTX ISA: "TensorCore 5th Generation Family Instructions" (tcgen05), "cp.async.bulk.tensor", "mbarrier".
"""
# mypy: ignore-errors
# (what the DSL's objects are is known when a kernel is traced, not before)

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator

TILE_M = 128  # rows of C a CTA: one TMEM lane, and one thread, for each
TILE_N = 128  # columns of C a CTA: as many TMEM columns of fp32
TILE_K = 64  # how much of k one TMA load brings: 64 elements of 16 bits are one 128-byte swizzle row
THREADS = 128  # one warpgroup
TMEM_COLUMNS = 128
EPILOGUE_COLUMNS = 32  # columns of C that a thread holds in registers at a time


def check(m: int, n: int, k: int) -> None:
    """Raise ValueError unless C (m, n) = A (m, k) @ B (n, k).T can be cut into whole tiles."""
    for name, value, tile in (("m", m, TILE_M), ("n", n, TILE_N), ("k", k, TILE_K)):
        if value <= 0 or value % tile:
            padded = -(-max(value, 1) // tile) * tile
            raise ValueError(f"{name} = {value} is not a positive multiple of {tile}: pad with zeros to {padded}")


@cute.struct
class Control:
    """The few words of shared memory that are not operands."""

    loaded: cute.struct.MemRange[cutlass.Int64, 1]  # mbarrier: A and B have arrived
    multiplied: cute.struct.MemRange[cutlass.Int64, 1]  # mbarrier: the tensor core is done with them
    tmem_address: cutlass.Int32  # where tcgen05.alloc leaves the address it chose


class Gemm:
    """``Gemm()(a, b, c)``: compile with ``cute.compile(Gemm(), a, b, c)``; all extents and strides stay dynamic."""

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

        self.kernel(tma_a, a_coords, tma_b, b_coords, c, a_layout, b_layout).launch(
            grid=(cute.size(c, mode=[0]) // TILE_M, cute.size(c, mode=[1]) // TILE_N, 1),
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
        a_layout: cute.ComposedLayout,
        b_layout: cute.ComposedLayout,
    ):
        tidx, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        tile_m, tile_n, _ = cute.arch.block_idx()

        # ---- shared memory, barriers, tensor memory -------------------------------------------------------------
        smem = SmemAllocator()
        sA = smem.allocate_tensor(self.dtype, a_layout.outer, 1024, a_layout.inner)
        sB = smem.allocate_tensor(self.dtype, b_layout.outer, 1024, b_layout.inner)
        control = smem.allocate(Control)
        loaded = control.loaded.data_ptr()
        multiplied = control.multiplied.data_ptr()

        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(loaded, 1)
                cute.arch.mbarrier_init(multiplied, 1)
            cute.arch.mbarrier_init_fence()  # the TMA unit and the tensor core must see them initialised
            cute.arch.alloc_tmem(TMEM_COLUMNS, control.tmem_address.ptr)
            cute.arch.relinquish_tmem_alloc_permit()
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, control.tmem_address.ptr)

        # ---- who reads and writes what --------------------------------------------------------------------------
        tiled_mma = self.make_mma()
        thr_mma = tiled_mma.get_slice(0)
        gA = thr_mma.partition_A(cute.local_tile(a_coords, (TILE_M, TILE_K), (tile_m, None)))
        gB = thr_mma.partition_B(cute.local_tile(b_coords, (TILE_N, TILE_K), (tile_n, None)))
        to_sA, from_gA = cpasync.tma_partition(
            tma_a, 0, cute.make_layout(1), cute.group_modes(sA, 0, 3), cute.group_modes(gA, 0, 3)
        )
        to_sB, from_gB = cpasync.tma_partition(
            tma_b, 0, cute.make_layout(1), cute.group_modes(sB, 0, 3), cute.group_modes(gB, 0, 3)
        )
        tCrA = tiled_mma.make_fragment_A(sA)  # descriptors, not data: the tensor core reads shared memory itself
        tCrB = tiled_mma.make_fragment_B(sB)
        tCtC = cute.make_tensor(tmem, tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((TILE_M, TILE_N))).layout)
        tile_bytes = cute.size_in_bytes(self.dtype, a_layout) + cute.size_in_bytes(self.dtype, b_layout)

        # ---- main loop: load, wait, multiply, wait --------------------------------------------------------------
        phase = cutlass.Int32(0)
        for k in cutlass.range(cute.size(gA, mode=[3]), unroll=1):
            if warp == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(loaded, tile_bytes)
                cute.copy(tma_a, from_gA[None, k], to_sA, tma_bar_ptr=loaded)
                cute.copy(tma_b, from_gB[None, k], to_sB, tma_bar_ptr=loaded)
                cute.arch.mbarrier_wait(loaded, phase)
                for block in cutlass.range_constexpr(TILE_K // 16):
                    # The first block of all overwrites whatever was in TMEM; every later one adds to it.
                    tiled_mma.set(tcgen05.Field.ACCUMULATE, (k > 0) | (block > 0))
                    cute.gemm(tiled_mma, tCtC, tCrA[None, None, block], tCrB[None, None, block], tCtC)
                with cute.arch.elect_one():
                    tcgen05.commit(multiplied)
                cute.arch.mbarrier_wait(multiplied, phase)
            phase ^= 1

        # ---- epilogue: TMEM -> registers -> global memory -------------------------------------------------------
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()  # warp 0 has seen the last MMA complete; now all do
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        gC = thr_mma.partition_C(cute.local_tile(c, (TILE_M, TILE_N), (tile_m, tile_n)))
        chunk = ((TILE_M, EPILOGUE_COLUMNS),)
        tC_chunks = cute.zipped_divide(tCtC, chunk)
        gC_chunks = cute.zipped_divide(gC, chunk)
        copy_op = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
        tmem_load = tcgen05.make_tmem_copy(copy_op, tC_chunks[None, 0]).get_slice(tidx)
        source = tmem_load.partition_S(tC_chunks)
        target = tmem_load.partition_D(gC_chunks)
        registers = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
        for i in cutlass.range_constexpr(TILE_N // EPILOGUE_COLUMNS):
            cute.copy(tmem_load, source[None, None, i], registers)
            cute.arch.fence_view_async_tmem_load()
            cute.autovec_copy(registers, target[None, None, i])

        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.sync_threads()  # every warp has read its lanes before they are given back
        if warp == 0:
            prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
            cute.arch.dealloc_tmem(tmem, TMEM_COLUMNS)


Gemm.kernel.set_name_prefix("gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
