"""A plain wgmma GEMM: ``C = A @ B.T`` with one 64 x 128 tile of C a CTA, and nothing clever in it.

The sibling of blackwell/gemm.py on Hopper. TMA brings a tile of A and a tile of B into shared memory; the four warps of
one warpgroup start the tensor core together, and the sum grows in their own registers, so that no copy out of a tensor
memory follows. The three steps follow one another; nothing overlaps.

    A (m, k) and B (n, k)  bf16 or fp16, k contiguous
    C (m, n)               fp32, n contiguous
    m a multiple of 64, n of 128, k of 64

PTX ISA: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions" (wgmma), "cp.async.bulk.tensor",
"mbarrier".
"""
# mypy: ignore-errors
# (what the DSL's objects are is known when a kernel is traced, not before)

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator

TILE_M = 64  # rows of C a CTA: what one wgmma computes, sixteen for each warp
TILE_N = 128  # columns of C a CTA: 64 accumulator registers in each thread
TILE_K = 64  # how much of k one TMA load brings: 64 elements of 16 bits are one 128-byte swizzle row
THREADS = 128  # one warpgroup


def check(m: int, n: int, k: int) -> None:
    """Raise ValueError unless C (m, n) = A (m, k) @ B (n, k).T can be cut into whole tiles."""
    for name, value, tile in (("m", m, TILE_M), ("n", n, TILE_N), ("k", k, TILE_K)):
        if value <= 0 or value % tile:
            padded = -(-max(value, 1) // tile) * tile
            raise ValueError(f"{name} = {value} is not a positive multiple of {tile}: pad with zeros to {padded}")


@cute.struct
class Control:
    """The one word of shared memory that is no operand."""

    loaded: cute.struct.MemRange[cutlass.Int64, 1]  # mbarrier: A and B have arrived


class Gemm:
    """``Gemm()(a, b, c)``: compile with ``cute.compile(Gemm(), a, b, c)``; all extents and strides stay dynamic.

    a_kind, b_kind: how the operands lie in shared memory, one of warpgroup.SmemLayoutAtomKind. Their first letters say
    which dimension of the operand is contiguous (K or MN), in global memory too.
    """

    def __init__(
        self,
        a_kind=warpgroup.SmemLayoutAtomKind.K_SW128,
        b_kind=warpgroup.SmemLayoutAtomKind.K_SW128,
    ) -> None:
        self.kinds = a_kind, b_kind

    def make_mma(self) -> cute.TiledMma:
        """One 64 x 128 x 16 wgmma: both operands in shared memory, fp32 sums in registers."""
        majors = (OperandMajorMode.K if x.name.startswith("K_") else OperandMajorMode.MN for x in self.kinds)
        return cute.make_tiled_mma(
            warpgroup.MmaF16BF16Op(
                self.dtype, cutlass.Float32, (TILE_M, TILE_N, 16), warpgroup.OperandSource.SMEM, *majors
            )
        )

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        self.dtype = a.element_type
        a_atom = warpgroup.make_smem_layout_atom(self.kinds[0], self.dtype)
        b_atom = warpgroup.make_smem_layout_atom(self.kinds[1], self.dtype)
        a_layout = cute.tile_to_shape(a_atom, (TILE_M, TILE_K), (0, 1))
        b_layout = cute.tile_to_shape(b_atom, (TILE_N, TILE_K), (0, 1))

        load = cpasync.CopyBulkTensorTileG2SOp()
        tma_a, a_coords = cpasync.make_tiled_tma_atom(load, a, a_layout, (TILE_M, TILE_K))
        tma_b, b_coords = cpasync.make_tiled_tma_atom(load, b, b_layout, (TILE_N, TILE_K))

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

        # ---- shared memory and the barrier ----------------------------------------------------------------------
        smem = SmemAllocator()
        sA = smem.allocate_tensor(self.dtype, a_layout.outer, 1024, a_layout.inner)
        sB = smem.allocate_tensor(self.dtype, b_layout.outer, 1024, b_layout.inner)
        control = smem.allocate(Control)
        loaded = control.loaded.data_ptr()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(loaded, 1)
            cute.arch.mbarrier_init_fence()  # the TMA unit must see it initialised
        cute.arch.sync_threads()

        # ---- who reads and writes what --------------------------------------------------------------------------
        gA = cute.local_tile(a_coords, (TILE_M, TILE_K), (tile_m, None))
        gB = cute.local_tile(b_coords, (TILE_N, TILE_K), (tile_n, None))
        one = cute.make_layout(1)
        to_sA, from_gA = cpasync.tma_partition(tma_a, 0, one, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        to_sB, from_gB = cpasync.tma_partition(tma_b, 0, one, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
        tiled_mma = self.make_mma()
        thr_mma = tiled_mma.get_slice(tidx)
        gC = thr_mma.partition_C(cute.local_tile(c, (TILE_M, TILE_N), (tile_m, tile_n)))
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))  # descriptors, not data
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        sums = cute.make_rmem_tensor(gC.shape, cutlass.Float32)
        tile_bytes = cute.size_in_bytes(self.dtype, a_layout) + cute.size_in_bytes(self.dtype, b_layout)

        # ---- main loop: load, wait, multiply, wait --------------------------------------------------------------
        sums.fill(0.0)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        phase = cutlass.Int32(0)
        for k in cutlass.range(cute.size(gA, mode=[2]), unroll=1):
            if warp == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(loaded, tile_bytes)
                cute.copy(tma_a, from_gA[None, k], to_sA, tma_bar_ptr=loaded)
                cute.copy(tma_b, from_gB[None, k], to_sB, tma_bar_ptr=loaded)
            cute.arch.mbarrier_wait(loaded, phase)  # all four warps: each needs to see the tiles
            warpgroup.fence()  # the tensor core reads the sums behind whatever the warps did to these registers
            for block in cutlass.range_constexpr(TILE_K // 16):
                cute.gemm(tiled_mma, sums, tCrA[None, None, block], tCrB[None, None, block], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.sync_threads()  # the last warp's product is done too: the tiles may be overwritten
            phase ^= 1

        # ---- epilogue: registers -> global memory ---------------------------------------------------------------
        cute.autovec_copy(sums, gC)


Gemm.kernel.set_name_prefix("gemm", remove_cutlass_symbol=True, keep_mangled_name=False)
