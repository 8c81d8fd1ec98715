"""Rotary position embedding, the append to the KV cache, and its rewrite.

Half-split convention (Hugging Face): channel i pairs with i + d/2,

    y[i]       = x[i] * cos - x[i + d/2] * sin
    y[i + d/2] = x[i + d/2] * cos + x[i] * sin

(Su et al., 2021). Where only the first channels of a head are rotated, d is their number here; a layer may rotate none.
Queries are rotated in place and multiplied by the softmax's factor, ``log2(e) / sqrt(d)`` in most models, since
attention works in powers of two. Keys and values go to the blocks of the cache (`kernels.kv`).
"""

import numpy as np

from tinychat.kernels.jit import always_inline, kernel
from tinychat.kernels.kv import (
    head_of,
    head_size,
    layer_cache,
    load_key,
    load_value,
    store_key,
    store_value,
    value_width,
)
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import inverse_rms, norm_run
from tinychat.kernels.sizes import BLOCK, LANES
from tinychat.kernels.team import share_of, stage


@always_inline
def norm_head(x, start, gain, eps, d):
    """RMS-norm a head in place, where the model norms each head of queries and keys (Qwen3)."""
    if gain.shape[0] > 0:
        norm_run(x, start, d, gain, eps)


@always_inline
def rotate(x, start, cos_sin, rotary_dim, d, factor):
    """Rotate the first of d numbers, from flat element `start` on, by the angles of their position; multiply all.

    cos_sin : float32 [>= rotary_dim], cosines then sines.
    """
    half = rotary_dim // 2
    whole = half // LANES * LANES
    for i in range(0, whole, LANES):
        cos, sin = load_f32(cos_sin, i), load_f32(cos_sin, half + i)
        first, second = load_f32(x, start + i), load_f32(x, start + half + i)
        store_f32(x, start + i, (first * cos - second * sin) * factor)
        store_f32(x, start + half + i, (second * cos + first * sin) * factor)
    for i in range(whole, half):
        cos, sin = cos_sin[i], cos_sin[half + i]
        first, second = load_one(x, start + i), load_one(x, start + half + i)
        store_one(x, start + i, (first * cos - second * sin) * factor)
        store_one(x, start + half + i, (second * cos + first * sin) * factor)
    for i in range(rotary_dim, d):
        store_one(x, start + i, load_one(x, start + i) * factor)


@stage
def rope_append(team, T, batch, qkv, q_gain, k_gain, angles, rotary_dim, sizes, cache):
    """Rotate queries and keys in place, append keys and values at their positions.

    batch : of T rows or more, the `sequences` and `positions`, int64, ascending in a sequence, `query_factors` float32,
    `cos_sin` float32 [sets, >= T, >= rotary_dim], cos then sin; and the `tables` of the sequences, int32 [sequences,
    blocks]; qkv : float32 [>= T, >= (H + 2 G) d], q then k then v; q_gain, k_gain : float32 [d], or [0] for none;
    angles : the set of `cos_sin`; rotary_dim : channels of a head that are rotated, the first ones; cache : a
    LayerCache.
    """
    G, d, heads, eps = cache.keys.shape[2], head_size(cache), sizes.num_attention_heads, sizes.rms_norm_eps
    first, last = share_of(team, T * (heads + G))
    for item in range(first, last):
        t, h = item // (heads + G), item % (heads + G)
        start = t * qkv.shape[1] + h * d
        if h < heads:
            norm_head(qkv, start, q_gain, eps, d)
            rotate(qkv, start, batch.cos_sin[angles, t], rotary_dim, d, batch.query_factors[t])
        else:
            norm_head(qkv, start, k_gain, eps, d)
            rotate(qkv, start, batch.cos_sin[angles, t], rotary_dim, d, np.float32(1))
            sequence, position = batch.sequences[t], batch.positions[t]
            head, i = head_of(cache, batch.tables[sequence, position // BLOCK], h - heads), position % BLOCK
            store_key(cache, head, i, qkv, start, d)
            width = value_width(cache, d)
            store_value(cache, head, i, qkv, start + G * d, width, t == T - 1 or batch.sequences[t + 1] != sequence)


@stage
def norm_values(team, T, qkv, sizes, cache):
    """RMS-norm each head of the values in place, without gains; arguments are those of `rope_append`."""
    G, d = cache.keys.shape[2], head_size(cache)
    first, last = share_of(team, T * G)
    for item in range(first, last):
        start = item // G * qkv.shape[1] + (sizes.num_attention_heads + G + item % G) * d
        scale = inverse_rms(qkv, start, d, sizes.rms_norm_eps)
        for i in range(d):
            store_one(qkv, start + i, load_one(qkv, start + i) * scale)


@stage
def rotate_queries(team, T, batch, qkv, q_gain, angles, rotary_dim, sizes, cache):
    """Rotate queries in place, of a layer without keys and values of its own; arguments are those of `rope_append`."""
    d, heads = head_size(cache), sizes.num_attention_heads
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t = item // heads
        start = t * qkv.shape[1] + item % heads * d
        norm_head(qkv, start, q_gain, sizes.rms_norm_eps, d)
        rotate(qkv, start, batch.cos_sin[angles, t], rotary_dim, d, batch.query_factors[t])


@kernel
def rewrite(front, back, tables, moves, row):
    """Fill positions with keys and values of others: drops a turn, shifts the context or changes the type.

    A key that does not move keeps its bits.

    front, back : CacheBuffers, of any type each, or the same one; tables : int64 [2, blocks], the blocks of the front
    with the old positions, and those of the back, none of them the same, for the new ones; moves : Moves; row :
    float32 [d], scratch.
    """
    L, G, n, d = front.keys.shape[1], front.keys.shape[2], moves.sources.shape[0], row.shape[0]
    for item in range(L * G):
        layer, g = item // G, item % G
        old, new = layer_cache(front, layer), layer_cache(back, layer)
        for i in range(n):
            source, j = moves.sources[i], moves.first + i
            old_head = head_of(old, tables[0, source // BLOCK], g)
            new_head = head_of(new, tables[1, j // BLOCK], g)
            load_key(old, old_head, source % BLOCK, row, d)
            if source != j:
                angles = moves.turns[moves.angle_sets[layer], i]
                rotate(row, 0, angles, moves.rotary_dims[layer], d, np.float32(1))
            store_key(new, new_head, j % BLOCK, row, 0, d)
            width = value_width(old, d)
            load_value(old, old_head, source % BLOCK, row, width)
            store_value(new, new_head, j % BLOCK, row, 0, width, i == n - 1)
