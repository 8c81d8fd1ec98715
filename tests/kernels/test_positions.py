"""Learned vectors of positions, the norm of embeddings, and scores that fall with the distance of the key."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from kernels.test_attention import LOG2_E, NO_WINDOW, draw, run, tolerance
from kernels.test_inputs import NORM_EPS, dims_of, padded_rows

from tinychat.kernels.embedding import add_positions
from tinychat.kernels.norms import norm_rows
from tinychat.kernels.sizes import BLOCK
from tinychat.kernels.variants import Alibi, AlibiBothWays, BothWays, DistanceBias, LayerNorm
from tinychat.models.distance_biases import BUCKETS, REACH, bucket_of, by_distance


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


@pytest.mark.parametrize(("H", "G"), [(6, 6), (6, 2), (5, 1)])
@pytest.mark.parametrize(("start", "T"), [(0, 1), (600, 1), (0, 17), (60, 100)])
def test_alibi_of_both_sides(H, G, start, T, rng):
    slopes = tuple(2.0 ** -np.arange(1, H + 1))
    q, cache, k, v = draw(rng, start + T, T, H, G, 20, "f32")
    scoring = AlibiBothWays((np.array(slopes) * LOG2_E).astype(np.float32))
    got = run("f32", q, cache, start, BothWays(np.int64(NO_WINDOW)), scoring=scoring)
    expected = reference.attention(q, k, v, slopes=slopes, both_ways=True)
    assert_within(got, expected, tolerance("f32", q.astype(np.float64), k, v, NO_WINDOW, True) + 100 * EPS)


def test_buckets_of_distances():
    distances = range(-600, 601)
    assert [bucket_of(distance) for distance in distances] == [reference.bucket(distance) for distance in distances]
    values = np.arange(BUCKETS * 3, dtype=np.float32).reshape(1, -1)
    table = by_distance(values, 150)
    assert table.shape == (1, 3, 300)
    for distance in (-149, -91, -8, 0, 1, 150):
        assert table[0, :, distance + 149].tolist() == values.reshape(BUCKETS, 3)[reference.bucket(distance)].tolist()


@pytest.mark.live
def test_buckets_equal_transformers():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    distances = torch.arange(-9000, 9001)
    theirs = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(distances)
    assert [bucket_of(distance) for distance in distances.tolist()] == theirs.tolist()


# Keys of a whole item of queries before it, around it, and farther than all buckets.
@pytest.mark.parametrize(("H", "G"), [(6, 6), (6, 2), (5, 1)])
@pytest.mark.parametrize(("start", "T"), [(0, 1), (9, 1), (600, 1), (0, 17), (60, 17), (0, 260)])
def test_biases_of_distances(H, G, start, T, rng):
    biases = rng.standard_normal((BUCKETS, H)).astype(np.float32)
    q, cache, k, v = draw(rng, start + T, T, H, G, 20, "f32")
    table = by_distance(biases.reshape(-1) * np.float32(LOG2_E), REACH + BLOCK)
    got = run("f32", q, cache, start, BothWays(np.int64(NO_WINDOW)), scoring=DistanceBias(table))
    expected = reference.attention(q, k, v, biases=biases.astype(np.float64), both_ways=True)
    assert start + T == 1 or np.abs(expected - reference.attention(q, k, v, both_ways=True)).max() > 0.05
    assert_within(got, expected, tolerance("f32", q.astype(np.float64), k, v, NO_WINDOW, True) + 20 * EPS)
