"""From what ``cute.compile`` returned to the launch: kernels of the CuTe DSL, compiled here, without a GPU."""

import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

import pytest

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")
torch = pytest.importorskip("torch")
cutlass = pytest.importorskip("cutlass")

import cuda.bindings.driver as cuda  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass.cute.nvgpu import cpasync, tcgen05  # noqa: E402
from cutlass.cute.runtime import from_dlpack, make_ptr  # noqa: E402
from cutlass.memory import SmemAllocator  # noqa: E402

from ptxemu.config import Config  # noqa: E402
from ptxemu.cutedsl import arguments_of, launch, launch_record  # noqa: E402
from ptxemu.errors import MemoryFault  # noqa: E402
from ptxemu.host import HostError  # noqa: E402


def compile_(function, *args, more: str = "", directory):
    return cute.compile(function, *args, options=f"--keep-ptx --dump-dir {directory} {more}")


# ---------------------------------------------------------------------------------------------------- plain kernels


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    tid, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    at = cta * 64 + tid
    if at < cute.size(x):
        y[at] = x[at] * factor


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    scale_kernel(x, y, factor).launch(grid=(cute.ceil_div(cute.size(x), 64), 1, 1), block=(64, 1, 1))


@cute.jit
def three(
    x: cute.Tensor,
    y: cute.Tensor,
    z: cute.Tensor | None,
    factor: cutlass.Float32,
    n: cutlass.Int32,
    stream: cuda.CUstream,
):
    scale_kernel(x, y, factor).launch(grid=(n, 1, 1), block=(64, 1, 1), stream=stream)
    scale_kernel(y, x, factor * cutlass.Float32(0.5)).launch(
        grid=(2 * n, 1, 1), block=(64, 1, 1), cluster=(2, 1, 1), stream=stream
    )
    if cutlass.const_expr(z is not None):
        scale_kernel(x, z, factor).launch(grid=(4, 2, 3), block=(32, 2, 1), cluster=(2, 2, 1), smem=512, stream=stream)


def vectors(count: int = 128, number: int = 2):
    buffers = [torch.arange(count, dtype=torch.float32) for _ in range(number)]
    return buffers, [from_dlpack(b) for b in buffers]


def test_static_shapes_leave_only_pointers(tmp_path):
    (x, y), args = vectors(100)
    compiled = compile_(scale, *args, cutlass.Float32(2.0), directory=tmp_path)
    (record,) = launch_record(compiled, *args, cutlass.Float32(2.0))
    assert (record.grid, record.block, record.cluster, record.shared) == ((2, 1, 1), (64, 1, 1), (1, 1, 1), 0)
    assert record.params == [struct.pack("<Q", x.data_ptr()), struct.pack("<Q", y.data_ptr()), struct.pack("<f", 2.0)]


@pytest.mark.parametrize("count", [1, 64, 65, 1000])
def test_dynamic_shapes_travel_with_the_pointers(count, tmp_path):
    (x, _), args = vectors(7)
    args = [a.mark_layout_dynamic() for a in args]
    compiled = compile_(scale, *args, 1.0, directory=tmp_path)
    (x, _), args = vectors(count)
    (record,) = launch_record(compiled, *(a.mark_layout_dynamic() for a in args), 0.25)
    assert record.grid == (-(-count // 64), 1, 1)
    assert record.params[0][:12] == struct.pack("<Qi", x.data_ptr(), count)
    assert record.params[2] == struct.pack("<f", 0.25)


def test_several_launches_clusters_and_a_stream(tmp_path):
    (x, y, _), args = vectors(128, 3)
    call = (*args, 3.0, 5, cuda.CUstream(0))
    compiled = compile_(three, *call, directory=tmp_path)
    first, second, third = launch_record(compiled, *call)
    assert (first.grid, first.block, first.cluster, first.stream) == ((5, 1, 1), (64, 1, 1), (1, 1, 1), 0)
    assert (second.grid, second.block, second.cluster) == ((10, 1, 1), (64, 1, 1), (2, 1, 1))
    assert (third.grid, third.block, third.cluster, third.shared) == ((4, 2, 3), (32, 2, 1), (2, 2, 1), 512)
    assert [p[:8] for p in second.params[:2]] == [struct.pack("<Q", t.data_ptr()) for t in (y, x)]
    assert second.params[2] == struct.pack("<f", 1.5)
    with pytest.raises(HostError, match=r"cluster.*grid|grid.*multiple of cluster|grid \(0"):
        launch_record(compiled, *args, 3.0, 0, cuda.CUstream(0))


def test_an_argument_compiled_as_none_has_no_value(tmp_path):
    _, args = vectors(128, 2)
    call = (*args, None, 3.0, 1, cuda.CUstream(0))
    compiled = compile_(three, *call, directory=tmp_path)
    assert len(launch_record(compiled, *call)) == 2


class Pair(NamedTuple):
    x: cute.Tensor
    factor: cutlass.Float32


@cute.jit
def nested(
    many: tuple[cute.Tensor, cute.Tensor],
    pair: Pair,
    pointer: cute.Pointer,
    power: cutlass.Constexpr,
    flag: cutlass.Boolean,
    half: cutlass.Float16,
    wide: cutlass.Int64,
    small: cutlass.Uint8,
):
    target = cute.make_tensor(pointer, cute.make_layout(64))
    factor = pair.factor * cutlass.Float32(half) + cutlass.Float32(wide) + cutlass.Float32(flag)
    scale_kernel(many[0], many[1], factor).launch(grid=(small, 1, 1), block=(64, 1, 1))
    scale_kernel(pair.x, target, cutlass.Float32(power)).launch(grid=(1, 1, 1), block=(64, 1, 1))


def test_tuples_pointers_and_scalars_of_every_kind(tmp_path):
    (_, y, z, w), args = vectors(64, 4)
    pointer = make_ptr(cutlass.Float32, w.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
    pair = Pair(args[2], cutlass.Float32(8.0))
    compiled = compile_(nested, args[:2], pair, pointer, 7, True, 1.5, 3, 2, directory=tmp_path)
    first, second = launch_record(compiled, args[:2], pair, pointer, True, 0.5, -40, 100)
    assert first.grid == (100, 1, 1)
    assert first.params[2] == struct.pack("<f", 8.0 * 0.5 - 40 + 1)
    assert second.params[:2] == [struct.pack("<Q", z.data_ptr()), struct.pack("<Q", w.data_ptr())]
    assert second.params[2] == struct.pack("<f", 7.0)

    call = (args[:2], pair, pointer, True, 0.5, -40, 100)
    bound = arguments_of(compiled, call, {}, {"w": w})
    named = {a.name: (a.address, a.nbytes) for a in bound.allocations}
    assert named["many[1]"] == (y.data_ptr(), 256)
    assert named["pair.x"] == (z.data_ptr(), 256)
    assert named["w"] == (w.data_ptr(), 256)
    assert bound.raw == ["pointer"]


def test_views_of_one_buffer_become_one_allocation(tmp_path):
    packed = torch.zeros(4, 3, 16)
    q, k = (from_dlpack(packed[:, i]) for i in (0, 1))
    compiled = compile_(scale, q, k, 1.0, directory=tmp_path)
    (allocation,) = arguments_of(compiled, (q, k, 1.0), {}).allocations
    assert allocation.name == "x, y"
    assert allocation.address == packed.data_ptr()
    assert allocation.nbytes == 4 * (3 * 3 * 16 + 16 + 15 + 1)


@cute.jit
def reads_on_the_host(x: cute.Tensor, y: cute.Tensor):
    cute.printf("first element %f", x[0])
    scale_kernel(x, y, x[3]).launch(grid=(1, 1, 1), block=(64, 1, 1))


def test_the_host_function_may_read_a_tensor_and_print(tmp_path, capsys):
    (x, _), args = vectors(64)
    x[0], x[3] = 42.5, 0.75
    compiled = compile_(reads_on_the_host, *args, directory=tmp_path)
    (record,) = launch_record(compiled, *args)
    assert record.params[2] == struct.pack("<f", 0.75)
    assert "first element 42.5" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------- TMA descriptors

KIND = tcgen05.SmemLayoutAtomKind


class TmaCopy:
    """dst = src, each CTA one box of ``rows`` x ``columns`` of a tensor (rows, columns, ...) through shared memory."""

    def __init__(self, rank: int, rows: int, columns: int, swizzle: KIND | None):
        self.rank, self.swizzle = rank, swizzle
        self.tile = (rows, columns) + (1,) * (rank - 2)

    @cute.jit
    def __call__(self, src: cute.Tensor, dst: cute.Tensor):
        self.dtype = src.element_type
        if cutlass.const_expr(self.swizzle is None):
            layout = cute.make_ordered_layout(self.tile, order=(1, 0, *range(2, self.rank)))
        else:
            atom = tcgen05.make_smem_layout_atom(self.swizzle, src.element_type)
            layout = cute.tile_to_shape(atom, self.tile, order=tuple(range(self.rank)))
        load, src_boxes = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), src, layout, self.tile)
        store, dst_boxes = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), dst, layout, self.tile)
        boxes = cute.ceil_div(src.shape, self.tile)
        self.kernel(load, src_boxes, store, dst_boxes, layout).launch(
            grid=(boxes[0], boxes[1], cute.size(boxes) // (boxes[0] * boxes[1])), block=(32, 1, 1)
        )

    @cute.kernel
    def kernel(self, load: cute.CopyAtom, src: cute.Tensor, store: cute.CopyAtom, dst: cute.Tensor, layout):
        smem = SmemAllocator()
        if cutlass.const_expr(self.swizzle is None):
            tile = smem.allocate_tensor(self.dtype, layout, 1024)
        else:
            tile = smem.allocate_tensor(self.dtype, layout.outer, 1024, layout.inner)
        arrived = smem.allocate_array(cutlass.Int64, 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(arrived, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        one = cute.make_layout(1)
        flat = cute.group_modes(tile, 0, self.rank)
        src_tiles = cute.group_modes(cute.flat_divide(src, self.tile), 0, self.rank)
        dst_tiles = cute.group_modes(cute.flat_divide(dst, self.tile), 0, self.rank)
        to_tile, from_src = cpasync.tma_partition(load, 0, one, flat, src_tiles)
        from_tile, to_dst = cpasync.tma_partition(store, 0, one, flat, dst_tiles)
        x, y, z = cute.arch.block_idx()
        nx, ny, _ = cute.arch.grid_dim()
        box = x + nx * (y + ny * z)

        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, cute.size_in_bytes(self.dtype, layout))
        cute.copy(load, cute.group_modes(from_src, 1, self.rank + 1)[None, box], to_tile, tma_bar_ptr=arrived)
        cute.arch.mbarrier_wait(arrived, 0)
        cute.copy(store, from_tile, cute.group_modes(to_dst, 1, self.rank + 1)[None, box])
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


def tensor(rank: int, rows: int, columns: int, dtype):
    """A torch tensor of packed rows, and the same as (rows, columns, ...) with its columns contiguous."""
    outer = [3, 2, 2][: rank - 2]
    data = torch.zeros([*outer[::-1], rows, columns], dtype=dtype)
    order = [rank - 2, rank - 1, *range(rank - 3, -1, -1)]
    view = data.permute(order)
    return view, from_dlpack(view, assumed_align=16).mark_layout_dynamic(leading_dim=1)


@dataclass
class Descriptor:
    """The fields of a tiled-mode descriptor, taken out of its words bit by bit."""

    words: tuple[int, ...]

    @property
    def rank(self) -> int:
        return (self.words[1] >> 4 & 7) + 1

    @property
    def swizzle(self) -> int:
        return self.words[1] >> 13 & 3

    @property
    def dims(self) -> list[int]:
        halves = [self.words[4], self.words[4] >> 32, self.words[5], self.words[5] >> 32, self.words[6]]
        return [(half & 0xFFFFFFFF) + 1 for half in halves[: self.rank]]

    @property
    def strides(self) -> list[int]:
        halves = [self.words[1] >> 32, self.words[2], self.words[2] >> 32, self.words[3]]
        return [(half & 0xFFFFFFFF) * 16 for half in halves[: self.rank - 1]]

    @property
    def box(self) -> list[int]:
        sizes = [self.words[6] >> 56, *((self.words[7] >> 8 * i) & 0xFF for i in range(4))]
        return [size + 1 for size in sizes[: self.rank]]


SWIZZLES = [(None, 64, 0), (KIND.K_SW32, 16, 1), (KIND.K_SW64, 32, 2), (KIND.K_SW128, 64, 3)]


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize(("swizzle", "columns", "code"), SWIZZLES)
def test_descriptors_say_what_the_tensor_is(rank, swizzle, columns, code, tmp_path):
    (src, a), (dst, b) = (tensor(rank, 96, 2 * columns, torch.float16) for _ in range(2))
    compiled = compile_(TmaCopy(rank, 32, columns, swizzle), a, b, directory=tmp_path)
    (record,) = launch_record(compiled, a, b)
    assert record.grid == (3, 2, [1, 1, 1, 3, 6, 12][rank])
    maps = [Descriptor(struct.unpack("<16Q", p)) for p in record.params if len(p) == 128]
    assert [m.words[0] for m in maps] == [src.data_ptr(), dst.data_ptr()]
    for found in maps:
        assert found.rank == rank
        assert found.swizzle == code
        order = [1, 0, *range(2, rank)]  # a descriptor begins with the contiguous dimension
        assert found.dims == [src.shape[i] for i in order]
        assert found.strides == [src.stride(i) * 2 for i in order[1:]]
        assert found.box == [columns, 32] + [1] * (rank - 2)


def test_the_same_object_takes_other_extents(tmp_path):
    (_, a), (_, b) = (tensor(3, 96, 128, torch.bfloat16) for _ in range(2))
    compiled = compile_(TmaCopy(3, 32, 64, KIND.K_SW128), a, b, directory=tmp_path)
    for rows, columns in ((64, 64), (33, 192)):
        (src, a), (_, b) = (tensor(3, rows, columns, torch.bfloat16) for _ in range(2))
        (record,) = launch_record(compiled, a, b)
        found = Descriptor(struct.unpack("<16Q", record.params[0]))
        assert found.dims == [columns, rows, 3]
        assert found.words[0] == src.data_ptr()
        assert record.grid == (-(-rows // 32), columns // 64, 3)


# ---------------------------------------------------------------------------------------------------- what is missing


def test_no_ptx_is_an_error_that_names_the_option():
    _, args = vectors()
    compiled = cute.compile(scale, *args, 1.0)
    with pytest.raises(HostError, match="--keep-ptx"):
        launch_record(compiled, *args, 1.0)


def test_a_dump_directory_that_is_not_there_is_named(tmp_path):
    _, args = vectors()
    compiled = compile_(scale, *args, 1.0, directory=tmp_path / "absent")
    with pytest.raises(HostError, match=r"absent.*did\s+not exist"):
        launch_record(compiled, *args, 1.0)


@pytest.mark.parametrize("more", ["", "--generate-line-info", "iket", "--opt-level 2"])
def test_options_do_not_matter_to_the_launch(more, tmp_path):
    _, args = vectors()
    compiled = compile_(scale, *args, 1.0, more=more, directory=tmp_path)
    (record,) = launch_record(compiled, *args, 1.0)
    assert record.grid == (2, 1, 1)


# ---------------------------------------------------------------------------------------------------- the whole way


@pytest.mark.parametrize("count", [1, 63, 64, 1000])
def test_a_scaled_vector(count, tmp_path):
    (x, y), args = vectors(5)
    compiled = compile_(scale, *(a.mark_layout_dynamic() for a in args), 1.0, directory=tmp_path)
    (x, y), args = vectors(count)
    y.fill_(float("nan"))
    run = launch(compiled, *(a.mark_layout_dynamic() for a in args), 3.0)
    assert torch.equal(y, x * 3)
    assert run.grid == (-(-count // 64), 1, 1)
    assert run.warp_instructions > 0


def test_launches_run_in_order_and_see_one_anothers_writes(tmp_path):
    (x, y, z), args = vectors(128, 3)
    first = x.clone()
    y.fill_(float("nan"))
    z.fill_(float("nan"))
    call = (*args, 3.0, 2, cuda.CUstream(0))
    compiled = compile_(three, *call, directory=tmp_path)
    run = launch(compiled, *call)
    assert torch.equal(y, first * 3)
    assert torch.equal(x, first * 3 * 1.5)
    assert torch.equal(z[:32], x[:32] * 3)  # blocks of 32 x 2 threads, every one of which looks at its x only
    assert len(run.runs) == 3
    assert run.warp_instructions == sum(part.warp_instructions for part in run.runs)


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize(("swizzle", "columns", "code"), SWIZZLES)
def test_tma_carries_boxes_of_every_rank_there_and_back(rank, swizzle, columns, code, tmp_path):
    (src, a), (dst, b) = (tensor(rank, 80, 2 * columns, torch.float16) for _ in range(2))
    src.copy_(torch.randn(src.shape))
    dst.fill_(float("nan"))
    compiled = compile_(TmaCopy(rank, 32, columns, swizzle), a, b, directory=tmp_path)  # 80 rows: the last box is cut
    launch(compiled, a, b)
    assert torch.equal(src, dst)


def test_the_answer_does_not_depend_on_the_schedule(tmp_path):
    (src, a), (dst, b) = (tensor(2, 96, 128, torch.float16) for _ in range(2))
    src.copy_(torch.randn(src.shape))
    compiled = compile_(TmaCopy(2, 32, 64, KIND.K_SW128), a, b, directory=tmp_path)
    for seed in range(4):
        dst.fill_(float("nan"))
        launch(compiled, a, b, config=Config(schedule="adversarial", seed=seed))
        assert torch.equal(src, dst)


@cute.jit
def through_a_pointer(x: cute.Pointer, y: cute.Tensor):
    source = cute.make_tensor(x, cute.make_layout(64))
    scale_kernel(source, y, cutlass.Float32(2.0)).launch(grid=(1, 1, 1), block=(64, 1, 1))


def test_a_bare_pointer_needs_its_buffer(tmp_path):
    (x, y), args = vectors(64)
    pointer = make_ptr(cutlass.Float32, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=4)
    compiled = compile_(through_a_pointer, pointer, args[1], directory=tmp_path)
    with pytest.raises(MemoryFault) as caught:
        launch(compiled, pointer, args[1])
    assert "buffers=[array]" in "".join(caught.value.__notes__)
    launch(compiled, pointer, args[1], buffers=[x])
    assert torch.equal(y, x * 2)


@cute.kernel
def runs_over(x: cute.Tensor, y: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    y[tid] = x[tid]


@cute.jit
def too_many_threads(x: cute.Tensor, y: cute.Tensor):
    runs_over(x, y).launch(grid=(1, 1, 1), block=(64, 1, 1))


def test_a_fault_names_the_argument_and_the_source_line(tmp_path):
    x, y = torch.zeros(64), torch.zeros(40)
    args = [from_dlpack(t).mark_layout_dynamic() for t in (x, y)]
    compiled = compile_(too_many_threads, *args, more="--generate-line-info", directory=tmp_path)
    with pytest.raises(MemoryFault) as caught:
        launch(compiled, *args)
    assert "past the end of y" in str(caught.value)
    assert "test_launch.py" in str(caught.value)


def test_an_edited_ptx_runs_in_place_of_the_objects_own(tmp_path):
    (x, y), args = vectors(64)
    compiled = compile_(scale, *args, 2.0, directory=tmp_path)
    text = compiled.__ptx__
    assert "mul.f32" in text
    launch(compiled, *args, 2.0, ptx=text.replace("mul.f32", "add.f32"))
    assert torch.equal(y, x + 2)
    launch(compiled, *args, 2.0)
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("more", ["--generate-line-info", "iket", "--enable-assertions"])
def test_options_do_not_matter_to_the_answer(more, tmp_path):
    (x, y), args = vectors(64)
    compiled = compile_(scale, *args, 2.0, more=more, directory=tmp_path)
    launch(compiled, *args, 2.0)
    assert torch.equal(y, x * 2)
