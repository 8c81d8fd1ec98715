"""Short convolutions against the formula, with the past in every kind of cache."""

import numpy as np
import pytest
import reference
from kernels.cache_inputs import empty_cache, stored
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from kernels.test_rope_append import Angles

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.short_convolution import short_convolution

D, d = 120, 24
# Floats, pairs of halves, codes with scales: what each way of storing does to numbers is tested in other files.
KVS = ("f32", "bf16", "int8")
NO_ANGLES, NO_FACTORS = np.zeros((1, 1, 1), np.float32), np.zeros(1, np.float32)


def draw(rng, T, K):
    """Return b, c and x [T, 3 D], and taps [D, K]."""
    return rng.standard_normal((T, 3 * D)).astype(np.float32), rng.uniform(-2, 2, (D, K)).astype(np.float32)


def run(cache, bcx, taps, start, threads=1, sequences=None):
    """Run rows from position `start` on; return what comes out [T, D]. sequences : whose each row is, one when omitted.

    The tables of others are those of the first, some blocks on.
    """
    T = len(bcx)
    sequences = np.zeros(T, np.int64) if sequences is None else sequences
    positions = start + np.array([np.sum(sequences[:t] == sequences[t]) for t in range(T)])
    tables = np.stack([np.roll(cache.table, -number) for number in range(max(sequences) + 1)])
    work = np.concatenate([bcx, np.full((T, 16), UNTOUCHED)], axis=1)
    job = Angles(sequences, positions, tables, NO_ANGLES, NO_FACTORS)
    out = np.full((T, D + 8), UNTOUCHED, np.float32)
    scratch = np.full((threads, d + 16), np.nan, np.float32)
    sizes = ModelDims(0, 5, d, D, 0, np.float32(0))
    # Layers before and behind it are not its own.
    on_threads(short_convolution, threads, T, job, work, taps.reshape(-1), scratch, sizes, cache.layer(1), out)
    np.testing.assert_array_equal(work[:, D:-16], bcx[:, D:])
    assert (out[:, D:] == UNTOUCHED).all() and (work[:, -16:] == UNTOUCHED).all()
    return out[:, :D]


def new_cache(kv, G, context):
    """Return a cache of which the layers from 1 on have room for D numbers of a position."""
    return empty_cache(kv, G, context, d, layers=2 + -(-D // (2 * G * d)))


def expected_from(bcx, taps, kv):
    """Return the formula's result, with the past as a cache of that type keeps it."""
    b, _, x = np.split(bcx, 3, axis=1)
    v = (b * x).astype(np.float32)
    past = stored(v.reshape(-1, D // d, d), kv).reshape(v.shape)
    K = taps.shape[1]
    own = np.zeros_like(taps)
    own[:, -1] = taps[:, -1]
    ones = np.ones_like(b)
    before = reference.short_convolution(np.concatenate([past, ones, ones], axis=1), taps - own)
    c = bcx[:, D : 2 * D].astype(np.float64)
    result = c * (before + own[:, -1] * v)
    size = reference.short_convolution(np.abs(np.concatenate([past, c, ones], axis=1)), np.abs(taps))
    return result, (K + 3) * EPS * (size + np.abs(own[:, -1] * v * c))


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize(("T", "start"), [(1, 0), (2, 62), (3, 8), (17, 9), (200, 0), (1, 130)])
def test_formula_and_same_bits_in_any_batch(kv, T, start, rng):
    # One to three layers of the cache, and as many taps as there are heads of keys, and one more.
    G = 1 + T % 3
    bcx, taps = draw(rng, start + T, G + 1)
    cache = new_cache(kv, G, start + T)
    before = run(cache, bcx[:start], taps, 0, threads=3) if start else bcx[:0, :D]
    together = np.concatenate([before, run(cache, bcx[start:], taps, start, threads=2)])
    expected, error = expected_from(bcx, taps, kv)
    assert_within(together, expected, error)
    cache = new_cache(kv, G, start + T)
    alone = np.concatenate([run(cache, bcx[t : t + 1], taps, t) for t in range(start + T)])
    assert alone.tobytes() == together.tobytes()


def test_floats_are_the_reference_itself(rng):
    bcx, taps = draw(rng, 17, 3)
    error = 8 * EPS * reference.short_convolution(np.abs(bcx), np.abs(taps))
    assert_within(run(new_cache("f32", 2, 20), bcx, taps, 0), reference.short_convolution(bcx, taps), error)


def test_sequences_of_one_step_do_not_see_each_other(rng):
    bcx, taps = draw(rng, 9, 3)
    cache = new_cache("f32", 2, 200)
    sequences = np.repeat([0, 1], [4, 5])
    together = run(cache, bcx, taps, 0, threads=2, sequences=sequences)
    for number in (0, 1):
        rows = sequences == number
        assert run(new_cache("f32", 2, 200), bcx[rows], taps, 0).tobytes() == together[rows].tobytes()


def test_other_layers_of_the_cache_stay_as_they_are(rng):
    cache = new_cache("int8", 1, 70)
    before = [buffer.copy() for buffer in cache.buffers]
    run(cache, *draw(rng, 70, 3), 0)
    for buffer, old in zip(cache.buffers, before):
        np.testing.assert_array_equal(buffer[:, [0, -1]].view(np.uint8), old[:, [0, -1]].view(np.uint8))
