"""The arithmetic of an MMA against float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxemu.isa.mma import accumulate, multiply, to_float, unpack_tmem_operand


def bits_of(x: np.ndarray, kind: str) -> np.ndarray:
    """FP32 values as 16-bit patterns (bf16 by truncation: only exact values are used)."""
    if kind == "f16":
        return x.astype(np.float16).view(np.uint16)
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@given(st.integers(0, 65535))
def test_conversions_are_exact(pattern: int) -> None:
    raw = np.array([pattern], np.uint16)
    half = to_float(raw, "f16")
    assert np.array_equal(half.astype(np.float16).view(np.uint16), raw) or np.isnan(half[0])
    assert to_float(raw, "bf16").view(np.uint32)[0] == pattern << 16


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("m", "n"), [(128, 256), (64, 8), (128, 24)])
def test_product_and_sum_against_float64(kind: str, m: int, n: int) -> None:
    rng = np.random.default_rng(n)
    a = to_float(bits_of(rng.standard_normal((m, 16)).astype(np.float32), kind), kind)
    b = to_float(bits_of(rng.standard_normal((n, 16)).astype(np.float32), kind), kind)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T
    product = multiply(a, b)
    assert (np.abs(product - exact) <= 16 * 2.0**-24 * size).all()
    old = rng.standard_normal((m, n)).astype(np.float32)
    for scale in (0, 3):
        new = accumulate(old.view(np.uint32), product, "f32", True, scale).view(np.float32)
        expected = exact + old * 2.0**-scale
        assert (np.abs(new - expected) <= 20 * 2.0**-24 * (size + np.abs(old))).all()
    assert np.array_equal(accumulate(old.view(np.uint32), product, "f32", False).view(np.float32), product)


def test_half_accumulator_lies_in_the_low_half_of_a_cell() -> None:
    old = np.array([[1.5, -2.0]], np.float16).view(np.uint16).astype(np.uint32) | np.uint32(0xABCD0000)
    new = accumulate(old, np.array([[0.25, 1.0]], np.float32), "f16", True)
    assert np.array_equal(new.astype(np.uint16).view(np.float16), np.array([[1.75, -1.0]], np.float16))
    assert not (new >> 16).any()


def test_small_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, (128, 16)).astype(np.float32) for _ in range(2))
    assert np.array_equal(multiply(a, b), a.astype(np.int64) @ b.astype(np.int64).T)


def test_infinities_and_nans_pass() -> None:
    a = np.full((64, 16), np.inf, np.float32)
    b = np.zeros((8, 16), np.float32)
    with np.errstate(all="ignore"):  # as the machine does for a whole launch
        assert np.isnan(multiply(a, b)).all()


def test_two_elements_to_a_cell_low_half_first() -> None:
    k = np.arange(16, dtype=np.uint32)[None, :].repeat(4, 0)
    cells = k[:, ::2] | k[:, 1::2] << np.uint32(16)
    assert np.array_equal(unpack_tmem_operand(cells), k.astype(np.uint16))
