"""Rewriting the cache: what moves is turned, what stays is untouched to the bit."""

import numpy as np
import pytest
import reference
from kernels.cache_inputs import empty_cache, fill_layers, kvs, read_cache, storage_error, stored
from kernels.kernel_inputs import EPS, assert_within

from tinychat.kernels.buffers import Moves
from tinychat.kernels.rope import rewrite

L, G, S = 3, 2, 91
head_dims = pytest.mark.parametrize("d", [8, 24, 64, 80, 128])


def frequencies(d):
    return 10000.0 ** (-np.arange(0, d, 2) / d)


def random_cache(rng, kv, d):
    """Return a cache whose keys are rotated, and the bare keys [L, S, G, d]."""
    bare = rng.standard_normal((L, S, G, d)).astype(np.float32)
    angles = np.arange(S)[:, None] * frequencies(d)
    keys = np.stack([reference.rope(k, angles) for k in bare])
    return fill_layers(kv, keys, rng.standard_normal((L, S, G, d)).astype(np.float32)), bare


def moved(cache, d, sources, context, back_kv, rotary_dims=None):
    """Rewrite into a new cache; return it."""
    back = empty_cache(back_kv, G, context, d, L)
    angles = (np.arange(len(sources)) - sources)[:, None] * frequencies(d)
    turns = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    # The first set of angles is no layer's.
    turns, sets = np.stack([np.full_like(turns, np.nan), turns]), np.ones(L, np.int64)
    rotary_dims = np.array([d] * L if rotary_dims is None else rotary_dims)
    tables = np.zeros((2, max(len(cache.table), len(back.table))), np.int64)
    tables[0, : len(cache.table)], tables[1, : len(back.table)] = cache.table, back.table
    moves = Moves(0, sources, turns, sets, rotary_dims)
    rewrite(cache.buffers, back.buffers, tables, moves, np.empty(d, np.float32))
    return back


def test_each_layer_rotates_its_own_channels(rng):
    d, sources, rotary_dims = 24, np.r_[0:20, 33:S], (24, 0, 12)
    bare = rng.standard_normal((L, S, G, d)).astype(np.float32)
    angles = np.arange(S)[:, None] * frequencies(24)
    keys = np.stack([reference.rope(k, angles[:, : r // 2]) for k, r in zip(bare, rotary_dims)])
    cache = fill_layers("f32", keys, bare)
    k, _ = held("f32", moved(cache, d, sources, S, "f32", rotary_dims=rotary_dims), d, len(sources))
    angles = np.arange(len(sources))[:, None] * frequencies(24)
    for layer_index, r in enumerate(rotary_dims):
        if r in (0, d):
            fresh = reference.rope(bare[layer_index][sources], angles[:, : r // 2])
            assert_within(k[layer_index], fresh, 40 * EPS * np.abs(bare).max())
        np.testing.assert_array_equal(k[layer_index, ..., r:], bare[layer_index][sources][..., r:])


def held(kv, cache, d, count=S):
    """Return keys and values, float64 [L, count, G, d]."""
    layers = [read_cache(kv, cache, count, d, i) for i in range(L)]
    return tuple(np.stack(parts) for parts in zip(*layers))


def contents(cache):
    return [buffer.tobytes() for buffer in cache.buffers]


@kvs
@head_dims
def test_keys_after_a_gap_are_rotated_to_their_new_positions(kv, d, rng):
    cache, bare = random_cache(rng, kv, d)
    sources = np.r_[0:20, 33:S]
    k, v = held(kv, moved(cache, d, sources, S, kv), d, len(sources))
    fresh = np.stack([reference.rope(x[sources], np.arange(len(sources))[:, None] * frequencies(d)) for x in bare])
    length = np.abs(fresh[..., : d // 2]) + np.abs(fresh[..., d // 2 :])
    # Stored rounded before and after a turn, which mixes a pair; a cosine in float32 is off by half an ulp.
    pairs = np.concatenate([length, length], axis=-1)
    stored = np.sqrt(2) * storage_error(np.sqrt(2) * pairs, kv)
    assert_within(k, fresh, 2 * stored + 12 * EPS * pairs)
    np.testing.assert_array_equal(v, held(kv, cache, d)[1][:, sources])


@kvs
def test_positions_before_the_gap_are_the_same_bits(kv, rng):
    cache, _ = random_cache(rng, kv, 24)
    if kv != "int8":
        keys = cache.buffers.keys[cache.table[0]]
        keys[:, :, 0, :3] = 0
        keys.view(np.uint8)[:, :, 0, :3, 3::4] = 0x80  # negative zeros
    k, v = held(kv, moved(cache, 24, np.r_[0:20, 33:S], S, kv), 24, 20)
    old_k, old_v = held(kv, cache, 24, 20)
    assert k.tobytes() == old_k.tobytes()
    assert v.tobytes() == old_v.tobytes()


WIDER = [("bf16", "bf16"), ("f16", "f16"), ("int8", "int8"), ("f32", "f32")]
WIDER += [("f16", "f32"), ("bf16", "f32"), ("int8", "f32")]


@head_dims
@pytest.mark.parametrize("context", [S, 640])
@pytest.mark.parametrize(("kv", "back_kv"), WIDER)
def test_growing_and_widening_are_exact(kv, back_kv, d, context, rng):
    cache, _ = random_cache(rng, kv, d)
    back = moved(cache, d, np.arange(S), context, back_kv)
    for got, expected in zip(held(back_kv, back, d), held(kv, cache, d)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kv", ["bf16", "f16", "int8"])
def test_narrowing_rounds_once(kv, rng):
    cache, _ = random_cache(rng, "f32", 24)
    back = moved(cache, 24, np.arange(S), S, kv)
    for got, expected in zip(held(kv, back, 24), held("f32", cache, 24)):
        np.testing.assert_array_equal(got, stored(expected, kv))


@kvs
def test_the_front_is_only_read(kv, rng):
    cache, _ = random_cache(rng, kv, 40)
    before = contents(cache)
    back = moved(cache, 40, np.r_[0:7, 50:S], S, kv)
    assert contents(cache) == before != contents(back)


@kvs
def test_an_empty_cache_is_rewritten_to_nothing(kv, rng):
    cache, _ = random_cache(rng, kv, 24)
    back = moved(cache, 24, np.zeros(0, np.int64), S, kv)
    assert contents(back) == contents(empty_cache(kv, G, S, 24, L))
