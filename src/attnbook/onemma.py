"""One tensor-core multiplication by hand: a small PTX kernel, operands laid out as one says, descriptors as one says.

128 threads fill shared memory from an image, one of them issues a single `tcgen05.mma` of 128 x n x 16, all of them
read the accumulator out of tensor memory. Nothing checks that image and descriptors fit together: that is the point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import ptxemu
from ptxemu.isa import swizzle as sw
from ptxemu.isa.descriptors import MMA_K, SmemDescriptor, encode_instruction_descriptor, encode_smem_descriptor
from ptxemu.memory import SHARED_RESERVED

ROWS = 128
IMAGE = 48 << 10  # bytes of shared memory that come from the image; the barrier and the TMEM address lie behind

KERNEL = """\
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 sm[];
.visible .entry one_mma(.param .u64 image, .param .u64 out,
                        .param .u64 a, .param .u64 b, .param .u32 shapes)
{
    .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .pred %p<8>; .reg .b32 %d<8>;
    ld.param.u64 %rd1, [image];
    ld.param.u64 %rd2, [out];
    ld.param.u64 %rd4, [a];
    ld.param.u64 %rd5, [b];
    ld.param.u32 %r12, [shapes];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, sm;
    add.u32 %r3, %r2, 49152;              // mbarrier
    add.u32 %r4, %r2, 49168;              // the TMEM address goes here
    shr.u32 %r5, %r1, 5;                  // warp
    setp.ne.u32 %p1, %r1, 0;
    setp.ne.u32 %p2, %r5, 0;
    shl.b32 %r6, %r1, 2;
FILL:                                     // the part of the TMA
    cvt.u64.u32 %rd3, %r6;
    add.u64 %rd3, %rd3, %rd1;
    ld.global.u32 %r7, [%rd3];
    add.u32 %r8, %r6, %r2;
    st.shared.u32 [%r8], %r7;
    add.u32 %r6, %r6, 512;
    setp.lt.u32 %p3, %r6, 49152;
    @%p3 bra FILL;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
READY:
    @%p2 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], COLUMNS;
ALLOCATED:
    fence.proxy.async;                    // my stores, for the tensor core
    bar.sync 0;
    ld.shared.u32 %r9, [%r4];
    @%p1 bra ISSUED;
    setp.ne.u32 %p4, 0, 0;                // do not add to what is there
    tcgen05.mma.cta_group::1.kind::f16 [%r9], %rd4, %rd5, %r12, %p4;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
ISSUED:
    bar.sync 0;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r3], 0;
    @!%p5 bra WAIT;
    tcgen05.fence::after_thread_sync;
    shl.b32 %r10, %r5, 21;                // this warp's window: lane 32 * warp
    add.u32 %r11, %r9, %r10;
    mul.lo.u32 %r20, %r1, PITCH;
    cvt.u64.u32 %rd8, %r20;
    add.u64 %rd8, %rd8, %rd2;
READ
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    @%p2 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r9, COLUMNS;
FREED:
    ret;
}
"""


@dataclass(frozen=True)
class Operand:
    """Where an operand of 16 columns lies: start (bytes from the start of shared memory), LBO, SBO, swizzle, major.

    major: 0 if neighbours along the summed index are neighbours in memory (K-major), 1 otherwise (MN-major).
    """

    start: int
    lbo: int
    sbo: int
    swizzle: sw.Swizzle = sw.NONE
    major: int = 0

    def addresses(self, rows: int) -> NDArray[np.int64]:
        """Byte offset of every element in the image, (rows, 16), as the tensor core will look for it."""
        base = SHARED_RESERVED
        found = SmemDescriptor(0, base + self.start, self.lbo, self.sbo, 0, False, self.swizzle)
        return np.asarray(found.addresses(rows, self.major) - base)

    @property
    def descriptor(self) -> int:
        """The 64 bits that the kernel is given."""
        return encode_smem_descriptor(SHARED_RESERVED + self.start, self.lbo, self.sbo, self.swizzle)


def instruction(n: int, *, a_major: int = 0, b_major: int = 0) -> int:
    """The 32-bit instruction descriptor of a 128 x n x 16 product of bf16 into FP32."""
    return encode_instruction_descriptor(ROWS, n, a_major=a_major, b_major=b_major)


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of FP32 numbers; exact for small integers."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def place(image: NDArray[np.uint8], where: Operand, values: NDArray[np.float32]) -> None:
    """Write a (rows, 16) operand into the image where `where` says."""
    address, raw = where.addresses(len(values)), to_bf16(values)
    image[address], image[address + 1] = raw & 0xFF, raw >> 8


def multiply(image: NDArray[np.uint8], a: int, b: int, shapes: int, *, n: int) -> NDArray[np.float32]:
    """Run the kernel in the emulator: the (128, n) accumulator. a, b: shared-memory descriptors; n: multiple of 16."""
    if image.nbytes != IMAGE or n % 16 or not 16 <= n <= 256:
        raise ValueError(f"the image has {image.nbytes} bytes, n = {n}: make it {IMAGE} bytes, n 16 to 256 in sixteens")
    read = []
    for column in range(0, n, 8):
        registers = ", ".join(f"%d{i}" for i in range(8))
        read += [f"    add.u32 %r21, %r11, {column};"]
        read += [f"    tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{registers}}}, [%r21];"]
        read += ["    tcgen05.wait::ld.sync.aligned;"]
        read += [f"    st.global.u32 [%rd8+{4 * (column + i)}], %d{i};" for i in range(8)]
    columns = max(32, 1 << (n - 1).bit_length())
    text = (
        KERNEL.replace("COLUMNS", str(columns)).replace("PITCH", str(4 * n)).replace("READ\n", "\n".join(read) + "\n")
    )
    out = np.full((ROWS, n), np.nan, np.float32)
    ptxemu.run_ptx(text, block=(128, 1, 1), args=[image, out, a, b, shapes], shared=IMAGE + 64)
    return out


def integers(rows: int, seed: int = 0) -> NDArray[np.float32]:
    """A (rows, 16) matrix of small integers, exact in bf16, whose products sum exactly in FP32."""
    return np.random.default_rng(seed).integers(-8, 9, (rows, MMA_K)).astype(np.float32)
