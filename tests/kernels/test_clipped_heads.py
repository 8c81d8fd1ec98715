"""Queries and keys that are no longer than a bound, values of a root mean square of 1, and how both are appended."""

from typing import NamedTuple

import numpy as np
import pytest
import reference
from kernels.cache_inputs import KVS, Pages, empty_cache, kvs, read_cache, read_values, storage_error
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from reference_mixtures import clipped

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.clipped_heads import append_clipped, clip_queries
from tinychat.kernels.sizes import BLOCK, PER_LANE
from tinychat.kernels.variants import QueryClips

NORM_EPS, FACTOR, BOUND, RELATIVE_BOUND = (np.float32(x) for x in (1e-6, np.log2(np.e) / 5, 4.0, 1.5))
LENGTHS = (1, 2, 3, 17, 200)
# Heads of queries and of keys, numbers of a head, and those that weigh profiles.
HEADS = [(4, 2, 48, 6), (3, 3, 6, 1), (8, 1, 80, 16), (9, 3, 24, 5)]


class Positions(NamedTuple):
    """The fields of a batch that the kernels read."""

    sequences: np.ndarray
    positions: np.ndarray
    tables: np.ndarray
    query_factors: np.ndarray


def dims(H, d):
    return ModelDims(0, H, d, 0, 0, NORM_EPS)


def at_positions(starts, counts, tables, growth=None):
    """Return rows of sequences: where those of each begin, and how many they are."""
    growth = np.ones(sum(counts), np.float32) if growth is None else growth
    return Positions(
        np.repeat(np.arange(len(counts)), counts),
        np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts)]),
        tables,
        growth * FACTOR,
    )


def rows_of(rng, T, heads, d):
    """Draw vectors, half of them longer than the bound, with more behind them and one row below them."""
    x = rng.standard_normal((T, heads, d)) * rng.choice([0.3, 3.0], (T, heads, 1)) * BOUND / np.sqrt(d)
    return padded(x.reshape(T, -1))


def padded(x):
    return np.pad(x.astype(np.float32), ((0, 1), (0, 16)), constant_values=UNTOUCHED)


def clips(rng, H, d, R, grows=False):
    """Return scales of both signs and the bounds."""
    scales = (rng.uniform(0.5, 1.5, size).astype(np.float32) * rng.choice([-1, 1], size) for size in (H * d, H * R))
    return QueryClips(*(each.astype(np.float32) for each in scales), BOUND, RELATIVE_BOUND, FACTOR, np.bool_(grows))


def clip(x, batch, scales, H, d, threads=1):
    """Run the kernel for rows of queries and weights of profiles; return the clipped ones."""
    (T, width), out = x.shape, padded(x)
    on_threads(clip_queries, threads, T, batch, out, scales, dims(H, d))
    assert (out[T:] == UNTOUCHED).all() and (out[:, width:] == UNTOUCHED).all()
    return out[:T, :width]


def queries_of(rng, T, H, d, R):
    """Return clipped queries and weights at some positions."""
    x = rng.standard_normal((T, H * (d + R))).astype(np.float32) * 2
    growth = rng.uniform(1, 2, T).astype(np.float32)
    batch = at_positions([8], [T], np.zeros((1, 9), np.int32), growth)
    return clip(x, batch, clips(rng, H, d, R, grows=True), H, d)


def assert_clipped(got, x, bound, factors, d):
    """Compare with clipped vectors [T, heads, d] times factors [T]; some are shorter than the bound."""
    expected = clipped(x, bound) * factors[:, None, None]
    # The sum of squares is rounded d times, and halved by the root; scales and products round once each.
    assert_within(got, expected, (d / 2 + 8) * EPS * np.abs(expected))


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize(("H", "G", "d", "R"), HEADS)
def test_queries_are_clipped(H, G, d, R, T, grows, rng):
    x = np.concatenate([rows_of(rng, T, H, d)[:, : H * d], rows_of(rng, T, H, R)[:, : H * R]], axis=1)[:T]
    growth = rng.uniform(1, 2, T).astype(np.float32)
    batch, scales = at_positions([8], [T], np.zeros((1, 9), np.int32), growth), clips(rng, H, d, R, grows)
    results = [clip(x, batch, scales, H, d, threads) for threads in (1, 2, 3)]
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    q, weights = np.split(x.astype(np.float64), [H * d], axis=1)
    q, weights = (q * scales.queries).reshape(T, H, d), (weights * scales.relative).reshape(T, H, R)
    got_q, got_weights = np.split(results[0], [H * d], axis=1)
    factors = growth.astype(np.float64) if grows else np.ones(T)
    assert_clipped(got_q.reshape(T, H, d), q, BOUND, factors * FACTOR, d)
    assert_clipped(got_weights.reshape(T, H, R), weights, RELATIVE_BOUND, factors, R)
    if T == 200:
        longer = [np.linalg.norm(each, axis=-1) > bound for each, bound in ((q, BOUND), (weights, RELATIVE_BOUND))]
        assert all(0.1 < each.mean() < 0.9 for each in longer), "the case is of no use"
    # Each row by itself.
    for t in (0, T // 2):
        one = at_positions([8 + t], [1], batch.tables, growth[t : t + 1])
        assert clip(x[t : t + 1], one, scales, H, d).tobytes() == results[0][t].tobytes()


def append(kv, k, v, starts, counts, G, d, threads=1):
    """Append rows of sequences to layer 1 of a cache; return the cache of each."""
    blocks = max((start + count) // BLOCK + 1 for start, count in zip(starts, counts))
    pages = empty_cache(kv, G, BLOCK * blocks * len(counts), d, layers=2)
    tables = pages.table.reshape(len(counts), blocks)
    batch, T = at_positions(starts, counts, tables), len(k)
    scales = clips(np.random.default_rng(1), 2, d, 1)
    keys, values = padded(k), padded(v)
    on_threads(append_clipped, threads, T, batch, keys, values, scales, dims(2, d), pages.layer(1))
    for array in (keys, values):
        assert (array[T:] == UNTOUCHED).all() and (array[:, G * d :] == UNTOUCHED).all()
    # A code whose scale is none in the other layer.
    assert all((buffer[:, 0].reshape(-1).view(np.uint8) == 0xFF).all() for buffer in pages.buffers)
    return [Pages(pages.buffers, table) for table in tables]


def assert_appended(kv, pages, k, v, start, G, d):
    """Compare a sequence's cache with keys and values [T, G d]."""
    T = len(k)
    k, v = (x.reshape(T, G, d).astype(np.float64) for x in (k, v))
    found = read_cache(kv, pages, pages.context, d, layer=1)
    for got, expected in zip(found, (clipped(k, BOUND), reference.rms_norm(v, 1.0, float(NORM_EPS)))):
        error = (d / 2 + 8) * EPS * np.abs(expected).max(axis=-1, keepdims=True)
        assert_within(got[start : start + T], expected, error + storage_error(expected, kv) * 1.01)
    written = np.zeros(pages.context, bool)
    written[start : start + T] = True
    assert (np.isfinite(found[0]).all(axis=(1, 2)) == written).all() and np.isnan(found[0][~written]).all()
    if kv == "bf16" and (start + T) % 2:
        assert not found[1][start + T].any(), "the other half of the last pair is zero: attention reads it"
        written[start + T] = True
    assert (np.isfinite(found[1]).all(axis=(1, 2)) == written).all() and np.isnan(found[1][~written]).all()
    assert not read_values(kv, pages, layer=1)[:, written, d:].any(), "values are zero beyond d"


@pytest.mark.parametrize(
    ("kv", "G", "d"), [(kv, G, d) for kv in KVS for _, G, d, _ in HEADS if d % PER_LANE.get(kv, 1) == 0]
)
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("start", [0, 9, 61])
def test_appends(kv, G, d, T, start, rng):
    k, v = (rows_of(rng, T, G, d)[:T, : G * d] for _ in "kv")
    (pages,) = append(kv, k, v, [start], [T], G, d, threads=2)
    assert_appended(kv, pages, k, v, start, G, d)


@kvs
def test_sequences_of_a_batch_on_any_threads_and_in_any_chunks(kv, rng):
    G, d, starts, counts = 3, 48, [0, 62, 9, 511], [5, 3, 1, 40]
    k, v = (rows_of(rng, sum(counts), G, d)[:-1, : G * d] for _ in "kv")
    ends = np.cumsum([0, *counts])
    together = append(kv, k, v, starts, counts, G, d)
    for i, pages in enumerate(together):
        at = slice(ends[i], ends[i + 1])
        assert_appended(kv, pages, k[at], v[at], starts[i], G, d)
        # A token at a time.
        for t in range(ends[i], ends[i + 1]):
            start = starts[i] + t - ends[i]
            (alone,) = append(kv, k[t : t + 1], v[t : t + 1], [start], [1], G, d)
            for a, b in zip(*(read_cache(kv, each, start + 1, d, layer=1) for each in (alone, pages))):
                assert a[start].tobytes() == b[start].tobytes()
    for threads in (2, 3):
        again = append(kv, k, v, starts, counts, G, d, threads)
        assert [x.tobytes() for x in again[0].buffers] == [x.tobytes() for x in together[0].buffers]


@kvs
def test_zeros_and_numbers_whose_squares_overflow(kv, rng):
    """The length of the latter counts as infinite: keys and values become 0, queries too."""
    k, v = np.zeros((2, 4, 48), np.float32)
    k[1:3], v[1:3] = 1e30, -1e30
    k[3], v[3] = 1e15, 1e15
    (pages,) = append(kv, k, v, [8], [4], 1, 48)
    keys, values = read_cache(kv, pages, 12, 48, layer=1)
    assert not keys[8:11].any() and not values[8:11].any()
    assert_within(keys[11], np.full((1, 48), BOUND / np.sqrt(48)), 0.01)
    assert_within(values[11], np.ones((1, 48)), 0.01)
    x, scales = np.zeros((3, 2 * (48 + 6)), np.float32), clips(rng, 2, 48, 6, grows=True)
    x[1], x[2] = 1e30, 1e-30
    out = clip(x, at_positions([8], [3], np.zeros((1, 9), np.int32)), scales, 2, 48)
    assert not out[:2].any()
    expected = x[2] * np.concatenate([scales.queries * FACTOR, scales.relative])
    assert_within(out[2], expected, 4 * EPS * np.abs(expected))
