"""Integer products of attention, at the ends of what codes can be."""

import numpy as np
import pytest
from kernels.kernel_inputs import compiled

from tinychat.kernels import quads
from tinychat.kernels.dot import ABOVE_DOT_ZERO
from tinychat.kernels.memory import load_f32x64
from tinychat.kernels.simd import ROUNDER
from tinychat.kernels.tile import load_rows, store_tokens

LANES, ROWS, VECTORS = 16, (0, 0, 0), (0, 0)


@compiled
def write_query(x, start, d, codes, found):
    found[0], found[1] = quads.store_query(codes, 0, 3, x, start, d)


@compiled
def write_weights(x, codes):
    quads.store_rounded(codes, 0, load_f32x64(x, 0) + ROUNDER)


@compiled
def products(keys, queries, starts, values, weights, ones, out):
    """Write what one quad of keys and one of values add to tiles of three rows and two vectors."""
    tile = quads.add_products_of_keys(
        quads.start_rows(starts, 0, VECTORS, ROWS), load_rows(keys, 0, LANES, VECTORS), queries, 0
    )
    store_tokens(out, 0, 32, quads.scaled_sums(tile, ones, 0, ones, 0, VECTORS, ROWS), ROWS)
    tile = quads.add_products_of_values(
        quads.zero_sums(VECTORS, ROWS), load_rows(values, 0, LANES, VECTORS), weights, 0, 2
    )
    store_tokens(out, 96, 32, quads.scaled_sums(tile, ones, 0, ones, 0, VECTORS, ROWS), ROWS)


@pytest.mark.parametrize("extreme", [None, -127, 127])
def test_products_are_exact(extreme, rng):
    def draw(low, *shape):
        codes = rng.integers(low, 128, shape, dtype=np.int8)
        return codes if extreme is None else np.full_like(codes, max(extreme, low))

    keys, values = draw(-127, 32, 4), draw(-127, 32, 4)
    queries, weights = draw(-127, 3, 4), draw(0, 3, 2, 4)
    starts = -ABOVE_DOT_ZERO * queries.sum(axis=1, dtype=np.int32)
    out = np.zeros(192, np.float32)
    stored = [np.ascontiguousarray(x).view(np.int32).ravel() for x in (keys ^ np.int8(-128), queries, values, weights)]
    products(stored[0], stored[1], starts, *stored[2:], np.ones(32, np.float32), out)
    of_keys, of_values = out.reshape(2, 3, 32)
    np.testing.assert_array_equal(of_keys, queries.astype(int) @ keys.T.astype(int))
    np.testing.assert_array_equal(of_values, weights[:, 0].astype(int) @ values.T.astype(int))


@pytest.mark.parametrize("d", [4, 16, 20, 64])
def test_a_query_is_rounded_by_its_largest_number(d, rng):
    x = np.full(8 + d + LANES, 1e9, np.float32)
    x[8 : 8 + d] = rng.standard_normal(d)
    codes, found = np.zeros((d + LANES) // 4 * 3, np.int32), np.zeros(2)
    write_query(x, 8, d, codes, found)
    peak = np.abs(x[8 : 8 + d]).max()
    expected = np.rint(x[8 : 8 + d] * (np.float32(127) / peak)).astype(np.int8)
    got = codes.view(np.int8).reshape(-1, 3, 4)[: d // 4, 0].ravel()
    np.testing.assert_array_equal(got, expected)
    assert abs(got).max() == 127
    assert found.tolist() == [peak / np.float32(127), -int(ABOVE_DOT_ZERO) * int(expected.sum())]


def test_a_query_of_zeros_is_zeros(rng):
    codes, found = np.full(24, -1, np.int32), np.ones(2)
    write_query(np.zeros(48, np.float32), 0, 16, codes, found)
    assert not codes.reshape(-1, 3)[:4, 0].any()
    assert found.tolist() == [0, 0]


def test_weights_are_stored_as_whole_numbers(rng):
    x = rng.integers(0, 128, 64).astype(np.float32)
    codes = np.zeros(16, np.int32)
    write_weights(x, codes)
    np.testing.assert_array_equal(codes.view(np.int8), x)
