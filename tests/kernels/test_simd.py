import numpy as np
import pytest
from kernels.kernel_inputs import EPS, compiled
from numba.core.errors import NumbaError

from tinychat.kernels import simd
from tinychat.kernels.memory import load_f32, load_f32x64, store_f32

LANES = 16


@compiled
def binary(a, b, out):
    """Write each lane-wise operation of two vectors to a row of `out`."""
    x, y = load_f32(a, 0), load_f32(b, 0)
    rows = (
        x + y,
        x - y,
        x * y,
        x / y,
        simd.maximum(x, y),
        simd.minimum(x, y),
        simd.fma(x, y, x),
    )
    for i in range(len(rows)):
        store_f32(out, i * LANES, rows[i])


@compiled
def unary(a, out):
    """Write each operation of one vector to a row of `out`."""
    x = load_f32(a, 0)
    rows = (
        simd.absolute(x),
        simd.nearest(x),
        simd.shift_exponent(x, simd.nearest(x) + simd.ROUNDER),
        simd.splat_f32(x_first(a)),
    )
    for i in range(len(rows)):
        store_f32(out, i * LANES, rows[i])


@compiled
def with_numbers(a, number, out):
    """Write operations of a vector and a number on either side."""
    x = load_f32(a, 0)
    rows = (x + number, 2 - x, x * 0.1, number / x, simd.maximum(number, x), simd.fma(number, x, 0.5))
    for i in range(len(rows)):
        store_f32(out, i * LANES, rows[i])


@compiled
def x_first(a):
    """Return the first element: a scalar that is no literal."""
    return a[0]


@compiled
def across(a):
    """Return the operations that bring lanes together."""
    x = load_f32(a, 0)
    whole = ((simd.to_i32(simd.nearest(x)) << 2) + 14 - 1) >> 2
    return simd.sum_lanes(x), simd.max_lanes(x), simd.sum_lanes_i32(whole)


@compiled
def masked(a, start, stop, value, out):
    """Write both ways of masking lanes."""
    store_f32(out, 0, simd.zero_outside(load_f32(a, 0), start, stop))
    store_f32(out, LANES, simd.fill_outside(load_f32(a, 0), start, stop, value))


@compiled
def exp2_of(x, out):
    """Apply exp2 to a whole array."""
    for i in range(0, x.size, LANES):
        store_f32(out, i, simd.exp2(load_f32(x, i)))


@compiled
def wide(a, start, stop, out):
    """Write operations of four registers at once to rows of `out`; return what brings their lanes together."""
    x = load_f32x64(a, 0)
    rows = (simd.exp2(x), simd.zero_outside(x, start, stop), simd.fill_outside(x, start, stop, np.float32(3)))
    for i in range(len(rows)):
        store_f32(out, i * 64, rows[i])
    return simd.sum_lanes(x), simd.max_lanes(x)


@compiled
def reduced(a, out):
    """Write the reductions of 16 vectors, and of the first 64 numbers by quarters."""
    x = load_f32x64(a, 0)
    rows = simd.sum_of_rows(a, 0), simd.max_of_rows(a, 0), simd.sum_quarters(x), simd.max_quarters(x)
    for i in range(len(rows)):
        store_f32(out, i * LANES, rows[i])


def vector(rng, spread=10.0):
    return (spread * rng.standard_normal(LANES)).astype(np.float32)


def test_lane_wise_operations_round_once(rng):
    a, b = vector(rng), vector(rng)
    out = np.zeros((7, LANES), np.float32)
    binary(a, b, out)
    wide = a.astype(np.float64)
    fused = (wide * b + wide).astype(np.float32)  # a product of two float32 is exact in float64
    np.testing.assert_array_equal(out[:6], [a + b, a - b, a * b, a / b, np.maximum(a, b), np.minimum(a, b)])
    np.testing.assert_allclose(out[6], fused, rtol=EPS / 2, atol=0)


def test_a_number_beside_a_vector_is_in_all_lanes(rng):
    a, number = vector(rng), np.float32(1.7)
    out = np.zeros((6, LANES), np.float32)
    with_numbers(a, number, out)
    expected = [a + number, 2 - a, a * np.float32(0.1), number / a, np.maximum(number, a)]
    np.testing.assert_array_equal(out[:5], expected)
    np.testing.assert_allclose(out[5], a.astype(np.float64) * number + 0.5, rtol=EPS)


@compiled
def shifted_float(a):
    return load_f32(a, 0) << 1


def test_operators_of_other_lanes_are_refused():
    with pytest.raises(NumbaError, match="No implementation of function"):
        shifted_float(np.zeros(LANES, np.float32))


def test_fma_does_not_round_the_product():
    a = np.full(LANES, 1 + EPS, np.float32)
    out = np.zeros((7, LANES), np.float32)
    binary(a, -a, out)
    assert (out[6] == np.float32(float(a[0]) - float(a[0]) ** 2)).all()


def test_rounding_is_half_to_even_and_integers_survive():
    a = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 96.5, -96.5, 3, -3, 2, 7.5, 8.5, 1e-20, -7], np.float32)
    out = np.zeros((4, LANES), np.float32)
    unary(a, out)
    whole = np.rint(a)
    shifted = np.ldexp(a, whole.astype(int))
    np.testing.assert_array_equal(out, [np.abs(a), whole, shifted, np.full(LANES, a[0])])


def by_halves(values, combine):
    """Combine the upper half with the lower until one is left."""
    while len(values) > 1:
        values = combine(values[: len(values) // 2], values[len(values) // 2 :])
    return values[0]


def test_lanes_are_summed_by_halves(rng):
    a = vector(rng, 1000.0)
    total, largest, integers = across(a)
    assert np.float32(total) == by_halves(a, np.add)
    assert np.float32(largest) == a.max()
    assert integers == (np.rint(a).astype(np.int64) + 3).sum()


@pytest.mark.parametrize("lane", range(LANES))
def test_each_lane_counts(lane):
    a = np.full(LANES, -5, np.float32)
    a[lane] = 4
    assert across(a) == (-71, 4, -71 + 3 * LANES)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 16), (0, 0), (3, 9), (15, 16), (-5, 4), (10, 99), (20, 30), (9, 3), (-70, -60)]
)
def test_lanes_outside_a_range_are_replaced(rng, start, stop):
    a = vector(rng)
    out = np.zeros((2, LANES), np.float32)
    masked(a, start, stop, np.float32(-7.5), out)
    inside = (np.arange(LANES) >= start) & (np.arange(LANES) < stop)
    np.testing.assert_array_equal(out, [np.where(inside, a, 0), np.where(inside, a, np.float32(-7.5))])


def test_masking_drops_nan():
    a = np.full(LANES, np.nan, np.float32)
    out = np.zeros((2, LANES), np.float32)
    masked(a, 0, 0, np.float32(2), out)
    np.testing.assert_array_equal(out, [[0] * LANES, [2] * LANES])


def test_exp2_is_within_one_ulp(rng):
    ends = np.array([-126, 127, -125.5, 126.5, 0, 0.5, -0.5, 0.49999997, -0.49999997, 1e-30], np.float32)
    x = np.concatenate([ends, rng.uniform(-126, 127, 400_000 - 10).astype(np.float32)])
    out = np.empty_like(x)
    exp2_of(x, out)
    exact = np.exp2(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(out - exact) / ulp) <= 1


def test_exp2_is_exact_for_whole_numbers_and_clamped_beyond():
    x = np.arange(-160, 160, dtype=np.float32)
    out = np.empty_like(x)
    exp2_of(x, out)
    np.testing.assert_array_equal(out, np.exp2(np.clip(x, -126, 127).astype(np.float64)))


def test_exp2_of_nan_is_nan():
    x = np.array([np.nan, 1.0] * 8, np.float32)
    out = np.empty_like(x)
    exp2_of(x, out)
    np.testing.assert_array_equal(out, [np.nan, 2.0] * 8)


def test_four_registers_at_once_are_as_one(rng):
    a = (5 * rng.standard_normal(64)).astype(np.float32)
    out, narrow = np.zeros((3, 64), np.float32), np.zeros(64, np.float32)
    total, largest = wide(a, 5, 40, out)
    exp2_of(a, narrow)
    inside = (np.arange(64) >= 5) & (np.arange(64) < 40)
    np.testing.assert_array_equal(out, [narrow, np.where(inside, a, 0), np.where(inside, a, np.float32(3))])
    assert np.float32(total) == by_halves(a, np.add)
    assert np.float32(largest) == a.max()


def test_rows_are_reduced_as_each_alone(rng):
    """To the bit: sums go by halves, of 64 numbers too."""
    a = (10 * rng.standard_normal((LANES, LANES))).astype(np.float32)
    out = np.zeros((4, LANES), np.float32)
    reduced(a, out)
    np.testing.assert_array_equal(out[0], [across(row)[0] for row in a])
    np.testing.assert_array_equal(out[1], a.max(axis=1))
    first, second, third, fourth = a[:4]
    np.testing.assert_array_equal(out[2], (first + third) + (second + fourth))
    np.testing.assert_array_equal(out[3], a[:4].max(axis=0))
