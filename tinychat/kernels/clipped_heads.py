"""Queries and keys that are no longer than a bound, and their append to the KV cache (Inkling 2).

    clip(x) = x min(1, bound / (|x| + 1e-6))

Queries, and the numbers by which each head weighs profiles of scores (`kernels.scores`), are multiplied by scales of
their channels before; in layers that see all positions, they grow with the position's logarithm behind it. Values are
brought to a root mean square of 1 (github.com/huggingface/transformers, models/inkling2_loop). There is no rotation.
"""

import numpy as np

from tinychat.kernels.jit import always_inline
from tinychat.kernels.kv import head_of, head_size, store_key, store_value, value_width
from tinychat.kernels.memory import load_one, store_one
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.sizes import BLOCK
from tinychat.kernels.team import share_of, stage

TINY = np.float32(1e-6)


@always_inline
def clip_row(x, start, d, bound, factor):
    """Bring d numbers of `x` to the bound if they are longer, and multiply them."""
    squares = np.float32(0)
    for i in range(start, start + d):
        v = load_one(x, i)
        squares += v * v
    scale = min(np.float32(1), bound / (np.sqrt(squares) + TINY)) * factor
    for i in range(start, start + d):
        store_one(x, i, load_one(x, i) * scale)


@always_inline
def scale_row(x, start, scales, first, d):
    """Multiply d numbers of `x` by scales, from element `first` of these on."""
    for i in range(d):
        store_one(x, start + i, load_one(x, start + i) * load_one(scales, first + i))


@stage
def clip_queries(team, T, batch, x, scales, sizes):
    """Scale and clip queries and, behind them, the weights of profiles, in place.

    batch : `query_factors` float32 [>= T]; x : float32 [>= T, >= H (d + R)], queries first; scales : `QueryClips`.
    """
    H, d, R = sizes.num_attention_heads, sizes.head_dim, scales.relative.shape[0] // sizes.num_attention_heads
    first, last = share_of(team, T * H)
    for item in range(first, last):
        t, h = item // H, item % H
        growth = batch.query_factors[t] / scales.factor if scales.grows else np.float32(1)
        start, relative = t * x.shape[1] + h * d, t * x.shape[1] + H * d + h * R
        scale_row(x, start, scales.queries, h * d, d)
        clip_row(x, start, d, scales.bound, growth * scales.factor)
        scale_row(x, relative, scales.relative, h * R, R)
        clip_row(x, relative, R, scales.relative_bound, growth)


@stage
def append_clipped(team, T, batch, keys, values, scales, sizes, cache):
    """Clip keys and norm values in place, and append both at their positions.

    batch : as in `kernels.rope.rope_append`; keys, values : float32 [>= T, >= G d]; scales : `QueryClips`; cache : a
    LayerCache.
    """
    G, d = cache.keys.shape[2], head_size(cache)
    first, last = share_of(team, T * G)
    for item in range(first, last):
        t, g = item // G, item % G
        key, value = t * keys.shape[1] + g * d, t * values.shape[1] + g * d
        clip_row(keys, key, d, scales.bound, np.float32(1))
        scale = inverse_rms(values, value, d, sizes.rms_norm_eps)
        for i in range(value, value + d):
            store_one(values, i, load_one(values, i) * scale)
        sequence, position = batch.sequences[t], batch.positions[t]
        head, i = head_of(cache, batch.tables[sequence, position // BLOCK], g), position % BLOCK
        store_key(cache, head, i, keys, key, d)
        is_last = t == T - 1 or batch.sequences[t + 1] != sequence
        store_value(cache, head, i, values, value, value_width(cache, d), is_last)
