"""The kernels that measure the machine do the work that is counted."""

import numpy as np
import pytest

from tinychat.kernels.ceilings import (
    MULTIPLY_ADDS,
    READ_FLOATS,
    REGISTER_MULTIPLY_ADDS,
    TILES_OF_X,
    multiply_registers_share,
    multiply_share,
    read_share,
)
from tinychat.kernels.dot import SIGNED
from tinychat.kernels.sizes import TILE_FLOATS, TOKENS


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_float_is_read_once(threads, rng):
    values = rng.integers(-9, 10, 7 * READ_FLOATS).astype(np.float32)
    sums = np.full((threads, READ_FLOATS), np.nan, np.float32)
    for thread in range(threads):
        read_share(thread, threads, values, sums)
    np.testing.assert_array_equal(sums.sum(axis=0), values.reshape(-1, READ_FLOATS).sum(axis=0))


def test_every_product_is_made(rng):
    rounds = 2 * TILES_OF_X + 3
    codes = rng.integers(0, 256, (1, 64), np.uint8)
    x = rng.integers(-127, 128, (TILES_OF_X, len(TOKENS), 4)).astype(np.int8)
    out = np.full((2, TILE_FLOATS), np.nan, np.float32)
    multiply_share(1, rounds, codes, x, out)
    total = sum(x[i % TILES_OF_X].astype(np.int64) for i in range(rounds))
    factors = codes.view(np.int8) if SIGNED else codes
    expected = np.einsum("rli,ti->rtl", factors.reshape(1, 16, 4).astype(np.int64), total)
    np.testing.assert_array_equal(out[1].reshape(expected.shape), expected)
    assert np.isnan(out[0]).all()
    assert expected.size * 4 == MULTIPLY_ADDS


def test_every_product_of_registers_is_made(rng):
    values, out = rng.integers(-128, 128, (2, 1024)).astype(np.int8), np.full((2, 256), np.nan, np.float32)
    multiply_registers_share(1, 3, values, out)
    x, w = values[0].reshape(16, 64).astype(np.int64), values[1].reshape(16, 16, 4).astype(np.int64)
    expected = 3 * x @ w.transpose(0, 2, 1).reshape(64, 16)
    np.testing.assert_array_equal(out[1].view(np.int32).reshape(16, 16), expected)
    assert np.isnan(out[0]).all()
    assert x.shape[0] * w.size * 4 == REGISTER_MULTIPLY_ADDS
