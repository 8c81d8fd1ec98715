"""Rewriting the cache: what moves is turned, what stays is untouched to the bit."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, assert_within, empty_cache, fill_cache, on_threads, read_cache, scratch_rows

from tinychat.kernels.kv import rewrite

L, G, S = 3, 2, 90
kvs = pytest.mark.parametrize("kv", ["f16", "f32"])
head_dims = pytest.mark.parametrize("d", [8, 24, 64, 80, 128])


def frequencies(d):
    return 10000.0 ** (-np.arange(0, d, 2) / d)


def stack(buffers):
    return tuple(np.stack(parts) for parts in zip(*buffers))


def random_cache(rng, kv, d):
    """Return a cache whose keys are rotated, the bare keys [L, S, G, d], and the values it holds."""
    bare = rng.standard_normal((L, S, G, d)).astype(np.float32)
    angles = np.arange(S)[:, None] * frequencies(d)
    filled = [
        fill_cache(kv, reference.rope(k, angles), rng.standard_normal((S, G, d)).astype(np.float32)) for k in bare
    ]
    keys, values = stack(part[:2] for part in filled)
    return keys, values, bare


def moved(kv, keys, values, sources, context, back_kv=None, threads=1):
    """Rewrite into new buffers; return keys and values of the positions there, float64 [L, n, G, d]."""
    d = keys.shape[3]
    back_kv = back_kv or kv
    back_keys, back_values = stack([empty_cache(back_kv, G, context, d)] * L)
    angles = (np.arange(len(sources)) - sources)[:, None] * frequencies(d)
    turns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    rows = scratch_rows(threads, d)
    on_threads(rewrite, threads, keys, values, back_keys, back_values, sources, turns, rows)
    read = [read_cache(back_kv, back_keys[i], back_values[i], len(sources)) for i in range(L)]
    return (back_keys, back_values), *stack(read)


def held(kv, keys, values):
    return stack([read_cache(kv, keys[i], values[i], S) for i in range(L)])


@kvs
@head_dims
def test_dropping_a_middle_turns_keys_to_where_they_stand(kv, d, rng):
    keys, values, bare = random_cache(rng, kv, d)
    sources = np.r_[0:20, 33:S]
    _, k, v = moved(kv, keys, values, sources, S)
    fresh = np.stack([reference.rope(x[sources], np.arange(len(sources))[:, None] * frequencies(d)) for x in bare])
    length = np.abs(fresh[..., : d // 2]) + np.abs(fresh[..., d // 2 :])
    # Stored rounded before and after a turn; a cosine in float32 is off by half an ulp.
    unit = 2.0**-10 if kv == "f16" else 6 * EPS
    tolerance = 2 * unit * np.concatenate([length, length], axis=-1) + (2.0**-23 if kv == "f16" else 0)
    assert_within(k, fresh, tolerance)
    np.testing.assert_array_equal(v, held(kv, keys, values)[1][:, sources])


@kvs
def test_positions_before_the_gap_are_the_same_bits(kv, rng):
    keys, values, _ = random_cache(rng, kv, 24)
    _, k, v = moved(kv, keys, values, np.r_[0:20, 33:S], S)
    old_k, old_v = held(kv, keys, values)
    assert k[:, :20].tobytes() == old_k[:, :20].tobytes()
    assert v[:, :20].tobytes() == old_v[:, :20].tobytes()


@head_dims
@pytest.mark.parametrize("context", [S, 640])
@pytest.mark.parametrize(("kv", "back_kv"), [("f16", "f16"), ("f32", "f32"), ("f16", "f32")])
def test_growing_and_widening_are_exact(kv, back_kv, d, context, rng):
    keys, values, _ = random_cache(rng, kv, d)
    _, k, v = moved(kv, keys, values, np.arange(S), context, back_kv)
    for got, expected in zip((k, v), held(kv, keys, values)):
        np.testing.assert_array_equal(got, expected)


def test_narrowing_rounds_half_to_even(rng):
    keys, values, _ = random_cache(rng, "f32", 24)
    _, k, v = moved("f32", keys, values, np.arange(S), S, "f16")
    for got, expected in zip((k, v), held("f32", keys, values)):
        np.testing.assert_array_equal(got, expected.astype(np.float16))


@kvs
def test_the_front_is_read_only_and_threads_agree(kv, rng):
    keys, values, _ = random_cache(rng, kv, 40)
    before = keys.tobytes(), values.tobytes()
    sources = np.r_[0:7, 50:S]
    (one_keys, one_values), *_ = moved(kv, keys, values, sources, S)
    (two_keys, two_values), *_ = moved(kv, keys, values, sources, S, threads=2)
    assert (keys.tobytes(), values.tobytes()) == before
    assert (one_keys.tobytes(), one_values.tobytes()) == (two_keys.tobytes(), two_values.tobytes())


@kvs
def test_an_empty_cache_is_rewritten_to_nothing(kv, rng):
    keys, values, _ = random_cache(rng, kv, 24)
    (back_keys, back_values), *_ = moved(kv, keys, values, np.zeros(0, np.int64), S)
    untouched = empty_cache(kv, G, S, 24)
    assert back_keys.tobytes() == np.stack([untouched[0]] * L).tobytes()
    assert back_values.tobytes() == np.stack([untouched[1]] * L).tobytes()
