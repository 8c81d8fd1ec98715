"""Learned vectors of positions, the norm of embeddings, and scores that fall with the distance of the key."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from kernels.test_attention import LOG2_E, NO_WINDOW, draw, run, tolerance
from kernels.test_inputs import NORM_EPS, dims_of, padded_rows

from tinychat.kernels.embedding import add_positions
from tinychat.kernels.norms import norm_rows
from tinychat.kernels.variants import Alibi, LayerNorm


@pytest.mark.parametrize(("start", "T"), [(0, 1), (9, 1), (8, 17)])
def test_vectors_of_positions_are_added(start, T, rng):
    vectors = rng.standard_normal((40, 48)).astype(np.float32)
    hidden = rng.standard_normal((T + 1, 48)).astype(np.float32)
    for threads in (1, 5):
        out = hidden.copy()
        on_threads(add_positions, threads, T, vectors, np.arange(start, start + T), out)
        np.testing.assert_array_equal(out[:T], hidden[:T] + vectors[start : start + T])
        np.testing.assert_array_equal(out[T], hidden[T])


@pytest.mark.parametrize("T", [1, 17])
@pytest.mark.parametrize(("size", "K"), [(40, 48), (173, 192)])
def test_embeddings_are_normed_in_place(size, K, T, rng):
    hidden = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3 + 1, K)
    gain, bias = (padded_rows(rng.uniform(-2, 2, (1, size)).astype(np.float32), K)[0] for _ in range(2))
    expected = np.zeros((T, K))
    expected[:, :size] = reference.layer_norm(hidden[:, :size], gain[:size], bias[:size], float(NORM_EPS))
    for threads in (1, 5):
        out = np.concatenate([hidden, np.full((1, K), UNTOUCHED)])
        on_threads(norm_rows, threads, T, LayerNorm(gain, bias), dims_of(size), out)
        assert_within(out[:T], expected, (size / 32 + 8) * EPS * (np.abs(expected) + 8))
        assert (out[T] == UNTOUCHED).all()


# More rows of queries than an item has, of heads that share keys and of those that do not.
@pytest.mark.parametrize(("H", "G"), [(6, 6), (6, 2), (5, 1)])
@pytest.mark.parametrize(("start", "T"), [(9, 1), (600, 1), (60, 17)])
def test_alibi(H, G, start, T, rng):
    slopes = tuple(2.0 ** -np.arange(1, H + 1))
    q, cache, k, v = draw(rng, start + T, T, H, G, 20, "f32")
    got = run("f32", q, cache, start, scoring=Alibi((np.array(slopes) * LOG2_E).astype(np.float32)))
    expected = reference.attention(q, k, v, slopes=slopes)
    assert np.abs(expected - reference.attention(q, k, v)).max() > 0.1
    # Of a far key the slope's part is large, and rounded; but then its weight is small.
    assert_within(got, expected, tolerance("f32", q.astype(np.float64), k, v, NO_WINDOW) + 100 * EPS)
