"""Narrow floating-point formats: 8, 6 and 4 bits, and the types of block scales.

PTX ISA "Alternate Floating-Point Data Formats" (5.2.3): E4M3, E5M2, E3M2, E2M3, E2M1, UE8M0, UE4M3. Rounding from wider
types is "cvt" (9.7.9.21): to nearest even, toward zero, up, or by random bits (.rs), saturating to the largest finite
value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Format:
    """A sign (unless `unsigned`), `exponent` bits with that `bias`, `mantissa` bits. largest: the largest finite value.

    nan: the pattern that a NaN becomes, where the format has one; else a NaN becomes the largest value.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    largest: float
    nan: int | None
    unsigned: bool = False

    @property
    def bits(self) -> int:
        return self.exponent + self.mantissa + (not self.unsigned)


FORMATS = {
    f.name: f
    for f in (
        Format("e4m3", 4, 3, 7, 448.0, 0x7F),
        Format("e5m2", 5, 2, 15, 57344.0, 0x7F),
        Format("e3m2", 3, 2, 3, 28.0, None),
        Format("e2m3", 2, 3, 1, 7.5, None),
        Format("e2m1", 2, 1, 1, 6.0, None),
        Format("ue8m0", 8, 0, 127, 2.0**127, 0xFF, True),
        Format("ue4m3", 4, 3, 7, 448.0, 0x7F, True),
    )
}


@lru_cache(maxsize=16)
def table(name: str) -> NDArray[np.float32]:
    """The value of every pattern, as FP32. Shape (2^bits,), but 256 for ue4m3, whose top bit is not looked at."""
    return from_bits(np.arange(256 if name == "ue4m3" else 1 << FORMATS[name].bits), name).astype(np.float32)


def from_bits(bits: NDArray, name: str) -> NDArray[np.float64]:
    """Patterns (integers, in the low bits) -> float64, exact."""
    f = FORMATS[name]
    b = np.asarray(bits).astype(np.int64)
    if name == "ue8m0":
        return np.where(b == 0xFF, np.nan, np.ldexp(1.0, b - f.bias))
    e = (b >> f.mantissa) & (1 << f.exponent) - 1
    m = b & (1 << f.mantissa) - 1
    tiny = np.ldexp(m.astype(np.float64), 1 - f.bias - f.mantissa)
    value = np.where(e == 0, tiny, np.ldexp(1.0 + m / (1 << f.mantissa), e - f.bias))
    top = (1 << f.exponent) - 1
    if name in ("e4m3", "ue4m3"):
        value = np.where((e == top) & (m == 7), np.nan, value)
    if name == "e5m2":
        value = np.where(e == top, np.where(m == 0, np.inf, np.nan), value)
    negative = (b >> (f.exponent + f.mantissa) & 1 != 0) & (not f.unsigned)
    return np.where(negative, -value, value)


def to_bits(
    x: NDArray[np.float64], name: str, mode: str = "rn", random: tuple[NDArray, int] | None = None
) -> NDArray[np.uint8]:
    """float64 (exact values of float32 or narrower) -> patterns, saturating to the largest finite value.

    mode: "rn"; for ue8m0 "rz" or "rp"; "rs" with random = (random bits, how many of them): they are added to the bits
    that are cut off, of which as many are looked at, and a carry rounds away from zero.
    """
    f = FORMATS[name]
    if name == "ue8m0":  # an exponent alone: what lies between two powers goes down or up
        magnitude = np.abs(x)
        _, e = np.frexp(magnitude)
        exact = magnitude == np.ldexp(1.0, e - 1)
        e = e - 1 + (0 if mode == "rz" else (~exact).astype(np.int64))
        e = np.where(magnitude == 0, -f.bias, np.where(np.isinf(magnitude), 127, e))
        return np.where(x != x, 0xFF, np.clip(e + f.bias, 0, 254)).astype(np.uint8)
    magnitude = np.minimum(np.abs(x), f.largest)
    _, e = np.frexp(np.where(magnitude > 0, magnitude, 1.0))
    e = np.maximum(e - 1, 1 - f.bias)
    scaled = np.ldexp(magnitude, f.mantissa - e)  # in units of the last place: exact
    if mode == "rs":
        assert random is not None
        r, count = random
        whole = np.floor(scaled)
        rest = np.floor(np.ldexp(scaled - whole, count))
        q = whole + (rest + r.astype(np.float64) >= float(1 << count))
    else:
        q = np.rint(scaled)
    q = np.minimum(np.ldexp(q, e - f.mantissa), f.largest)
    _, e = np.frexp(np.where(q > 0, q, 1.0))
    e = np.maximum(e - 1, 1 - f.bias)
    whole = np.where(q != q, 0, np.ldexp(q, f.mantissa - e)).astype(np.int64)
    normal = whole >= 1 << f.mantissa
    pattern = np.where(normal, ((e + f.bias) << f.mantissa) | (whole & (1 << f.mantissa) - 1), whole)
    sign = np.signbit(x).astype(np.int64) << (f.exponent + f.mantissa)
    nan = f.nan if f.nan is not None else (1 << f.exponent + f.mantissa) - 1
    return np.where(x != x, nan, pattern | sign).astype(np.uint8)
