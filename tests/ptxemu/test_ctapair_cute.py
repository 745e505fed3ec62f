"""CTA pairs against cute's own layouts: a matrix product of one tile over two CTAs, as the DSL lays A, B and D out."""
# mypy: ignore-errors
# ruff: noqa: E402 (the DSL may be absent)

import os
import tempfile

import pytest

torch = pytest.importorskip("torch")
cutlass = pytest.importorskip("cutlass")
os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")

import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cute.runtime import from_dlpack
from cutlass.experimental import primitives as prims
from cutlass.memory import SmemAllocator

import ptxemu

Kind = tcgen05.SmemLayoutAtomKind
DEPTH = 64
COLUMNS = 256


@cute.struct
class Control:
    loaded: cute.struct.MemRange[cutlass.Int64, 1]
    multiplied: cute.struct.MemRange[cutlass.Int64, 1]
    tmem: cutlass.Int32


class OneTileOfAPair:
    """C (m, n) = A (m, 64) @ B (n, 64).T with one MMA tile over two CTAs; each loads its share of A and B."""

    def __init__(self, m: int, n: int, kinds: tuple) -> None:
        self.m, self.n, self.kinds = m, n, kinds

    def make_mma(self):
        a, b = (OperandMajorMode.K if k.name.startswith("K_") else OperandMajorMode.MN for k in self.kinds)
        source = tcgen05.OperandSource.SMEM
        shape = (self.m, self.n, 16)
        op = tcgen05.MmaF16BF16Op(self.dtype, cutlass.Float32, shape, tcgen05.CtaGroup.TWO, source, a, b)
        return cute.make_tiled_mma(op)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        self.dtype = a.element_type
        mma = self.make_mma()
        tile = (self.m, self.n, DEPTH)
        a_atom = tcgen05.make_smem_layout_atom(self.kinds[0], self.dtype)
        b_atom = tcgen05.make_smem_layout_atom(self.kinds[1], self.dtype)
        a_layout = tcgen05.tile_to_mma_shape(a_atom, mma.partition_shape_A((self.m, DEPTH)))
        b_layout = tcgen05.tile_to_mma_shape(b_atom, mma.partition_shape_B((self.n, DEPTH)))
        cluster = cute.tiled_divide(cute.make_layout((2, 1, 1)), (mma.thr_id.shape,))
        load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO)
        tma_a, a_coords = cute.nvgpu.make_tiled_tma_atom_A(load, a, a_layout, tile, mma, cluster.shape)
        tma_b, b_coords = cute.nvgpu.make_tiled_tma_atom_B(load, b, b_layout, tile, mma, cluster.shape)
        self.kernel(tma_a, a_coords, tma_b, b_coords, c, a_layout, b_layout).launch(
            grid=(2, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1)
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
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        smem = SmemAllocator()
        sA = smem.allocate_tensor(self.dtype, a_layout.outer, 1024, a_layout.inner)
        sB = smem.allocate_tensor(self.dtype, b_layout.outer, 1024, b_layout.inner)
        control = smem.allocate(Control)
        loaded, multiplied = control.loaded.data_ptr(), control.multiplied.data_ptr()
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(loaded, 1)
                cute.arch.mbarrier_init(multiplied, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.alloc_tmem(COLUMNS, control.tmem.ptr, is_two_cta=True)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, control.tmem.ptr)
        mma = self.make_mma()
        part = mma.get_slice(rank)
        gA = part.partition_A(cute.local_tile(a_coords, (self.m, DEPTH), (0, 0)))
        gB = part.partition_B(cute.local_tile(b_coords, (self.n, DEPTH), (0, 0)))
        one = cute.make_layout(1)
        to_a, from_a = cpasync.tma_partition(tma_a, 0, one, cute.group_modes(sA, 0, 3), cute.group_modes(gA, 0, 3))
        to_b, from_b = cpasync.tma_partition(tma_b, 0, one, cute.group_modes(sB, 0, 3), cute.group_modes(gB, 0, 3))
        tCrA, tCrB = mma.make_fragment_A(sA), mma.make_fragment_B(sB)
        tCtC = cute.make_tensor(tmem, mma.make_fragment_C(mma.partition_shape_C((self.m, self.n))).layout)
        # The even CTA's barrier counts the bytes of both.
        nbytes = 2 * (cute.size_in_bytes(self.dtype, a_layout) + cute.size_in_bytes(self.dtype, b_layout))
        if warp == 0:
            if rank == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(loaded, nbytes)
            cute.copy(tma_a, from_a, to_a, tma_bar_ptr=loaded)
            cute.copy(tma_b, from_b, to_b, tma_bar_ptr=loaded)
            if rank == 0:
                cute.arch.mbarrier_wait(loaded, 0)
                for block in cutlass.range_constexpr(DEPTH // 16):
                    mma.set(tcgen05.Field.ACCUMULATE, block > 0)
                    cute.gemm(mma, tCtC, tCrA[None, None, block], tCrB[None, None, block], tCtC)
                with cute.arch.elect_one():
                    tcgen05.commit(multiplied, cutlass.Int16(3), tcgen05.CtaGroup.TWO)
        cute.arch.mbarrier_wait(multiplied, 0)
        prims.tcgen05_fence(prims.Tcgen05Fence.AFTER_THREAD_SYNC)
        gC = part.partition_C(cute.local_tile(c, (self.m, self.n), (0, 0)))
        atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
        copy = tcgen05.make_tmem_copy(atom, tCtC).get_slice(tidx)
        source, target = copy.partition_S(tCtC), copy.partition_D(gC)
        registers = cute.make_rmem_tensor(target.shape, cutlass.Float32)
        cute.copy(copy, source, registers)
        cute.arch.fence_view_async_tmem_load()
        cute.autovec_copy(registers, target)
        prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp == 0:
            cute.arch.dealloc_tmem(tmem, COLUMNS, is_two_cta=True)


@pytest.mark.parametrize(
    ("a_kind", "b_kind", "m", "n"),
    [
        (Kind.K_SW128, Kind.K_SW128, 256, 128),
        (Kind.K_SW64, Kind.MN_SW128, 256, 256),
        (Kind.MN_SW128, Kind.K_INTER, 128, 128),
        (Kind.K_SW128, Kind.MN_SW64, 128, 64),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_a_pair_multiplies_as_cute_lays_it_out(a_kind, b_kind, m, n) -> None:
    def operand(rows: int, kind) -> torch.Tensor:
        x = torch.randint(-15, 16, (rows, DEPTH)).to(torch.bfloat16) / 4
        return x if kind.name.startswith("K_") else x.t().contiguous().t()

    torch.manual_seed(m + n)
    a, b, c = operand(m, a_kind), operand(n, b_kind), torch.full((m, n), float("nan"))
    args = [from_dlpack(x, assumed_align=16) for x in (a, b, c)]
    with tempfile.TemporaryDirectory() as folder:
        compiled = cute.compile(
            OneTileOfAPair(m, n, (a_kind, b_kind)), *args, options=f"--keep-ptx --dump-dir {folder}"
        )
    assert "cta_group::2" in compiled.__ptx__
    for config in (ptxemu.Config(), ptxemu.Config(schedule="adversarial", seed=m + n)):
        c.fill_(float("nan"))
        run = ptxemu.launch(compiled, *args, config=config)
        assert torch.equal(c.double(), a.double() @ b.double().T)
        assert not run.findings
