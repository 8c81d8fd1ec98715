"""bfloat16: rounding, storing, and products of pairs, which must be the same bits with and without the instruction."""

import numpy as np
import pytest
from kernels.cache_inputs import to_bf16
from kernels.kernel_inputs import compiled

from tinychat.kernels import bfloat16
from tinychat.kernels.memory import load_f32, store_f32
from tinychat.kernels.sizes import HAS_BF16
from tinychat.kernels.tile import add_outer, add_outer_of_pairs, load_rows, load_tokens, store_tokens

LANES, ONE, THREE = 16, (0,), (0, 0, 0)


@compiled
def round_and_store(x, rounded, pairs):
    """Round all of `x`, as floats and as pairs."""
    for i in range(0, x.size, LANES):
        vector = bfloat16.round_bf16(load_f32(x, i))
        store_f32(rounded, i, vector)
        bfloat16.store_halves(pairs, i, vector)


@compiled
def copy_one_by_one(x, pairs, back):
    """Store each number and load it again."""
    for i in range(x.size):
        bfloat16.store_half(pairs, i, x[i])
        back[i] = bfloat16.load_half(pairs, i)


@compiled
def step_of_pairs(a, b, out):
    tile = add_outer(load_tokens(out, 0, LANES, ONE, THREE), load_rows(a, 0, LANES, ONE), b, 0, 1)
    store_tokens(out, 0, LANES, tile, THREE)


@compiled
def step_of_floats(a, b, out):
    tile = load_tokens(out, 0, LANES, ONE, THREE)
    store_tokens(out, 0, LANES, add_outer_of_pairs(tile, a, 0, LANES, ONE, b, 0, 1, 2), THREE)


def by_the_instruction(a, b, out):
    step_of_pairs(as_pairs(a), as_pairs(b), out)


def by_two_fmas(a, b, out):
    step_of_floats(as_pairs(a), b, out)


def multiplied(a, b, sums, multiply):
    """Return ``sums [3, 16] + a . b[t]`` over pairs a [16, 2], b [3, 2] of bfloat16, by one way of multiplying."""
    out = sums.ravel().copy()
    multiply(a, b.ravel(), out)
    return out.reshape(3, LANES)


def as_pairs(x):
    return (x.view(np.uint32) >> 16).astype(np.uint16).ravel().view(np.uint32)


@pytest.fixture(params=[by_the_instruction, by_two_fmas])
def multiply(request):
    if request.param is by_the_instruction and not HAS_BF16:
        pytest.skip("this instruction set has no product of pairs")
    return request.param


def test_rounding_is_half_away_from_zero(rng):
    halves = (np.arange(0x3F80, 0x4000, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    near = np.concatenate([np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(9))])
    spread = (np.exp2(rng.uniform(-120, 120, 100_000)) * rng.choice([-1, 1], 100_000)).astype(np.float32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3.4e38], np.float32)
    x = np.concatenate([halves, -halves, near, -near, spread, np.tile(special, 4)])
    x = x[: x.size // 32 * 32]
    rounded, pairs = np.empty_like(x), np.empty(x.size // 2, np.uint32)
    round_and_store(x, rounded, pairs)
    np.testing.assert_array_equal(rounded[:128], np.ldexp(np.arange(129, 257), -7), "a half goes up")
    np.testing.assert_array_equal(rounded, to_bf16(x))
    np.testing.assert_array_equal(pairs.view(np.uint16), rounded.view(np.uint32) >> 16)
    again, back = np.empty_like(pairs), np.empty_like(x)
    copy_one_by_one(x, again, back)
    np.testing.assert_array_equal(again, pairs)
    np.testing.assert_array_equal(back, rounded)


def test_a_step_rounds_after_each_product_odd_first(multiply, rng):
    for _ in range(50):
        a, b = (to_bf16(np.exp2(rng.integers(-8, 9, n)) * rng.standard_normal(n)) for n in (2 * LANES, 6))
        a, b = a.reshape(LANES, 2), b.reshape(3, 2)
        sums = (10.0 ** rng.integers(-3, 4, (3, LANES)) * rng.standard_normal((3, LANES))).astype(np.float32)
        # A product of two bfloat16 has 16 significant bits: its sum with a float32 fits float64, nearly always exactly.
        odd = (b[:, None, 1].astype(np.float64) * a[:, 1] + sums).astype(np.float32)
        expected = (b[:, None, 0].astype(np.float64) * a[:, 0] + odd).astype(np.float32)
        np.testing.assert_array_equal(multiplied(a, b, sums, multiply), expected)


def test_a_product_with_nan_is_nan(multiply):
    a, b = np.ones((LANES, 2), np.float32), np.ones((3, 2), np.float32)
    a[3, 0], b[1, 1] = np.nan, np.inf
    got = multiplied(a, b, np.zeros((3, LANES), np.float32), multiply)
    assert np.isnan(got[:, 3]).all()
    assert np.isposinf(np.delete(got[1], 3)).all()
    assert (np.delete(got, 3, axis=1)[[0, 2]] == 2).all()
