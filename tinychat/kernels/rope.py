"""Rotary position embedding and the append to the KV cache.

Half-split convention (Hugging Face): channel i pairs with i + d/2,

    y[i]       = x[i] * cos - x[i + d/2] * sin
    y[i + d/2] = x[i + d/2] * cos + x[i] * sin

(Su et al., 2021). Queries are rotated where they stand and take the softmax's factor ``log2(e) / sqrt(d)`` along,
since attention works in powers of two. Keys and values go to the front buffers of the cache (`kernels.kv`).
"""

import numpy as np

from tinychat.kernels.activations import inverse_rms
from tinychat.kernels.kv import store_key, store_value
from tinychat.kernels.memory import load_one
from tinychat.kernels.policy import inlined, kernel
from tinychat.kernels.threads import share


@inlined
def copy_head(qkv, start, gain, eps, row, d):
    """Copy a head to `row`, RMS-normed where the model norms queries and keys (Qwen3)."""
    normed = gain.shape[0] > 0
    scale = inverse_rms(qkv, start, d, eps) if normed else np.float32(1)
    for i in range(d):
        value = load_one(qkv, start + i)
        row[i] = value * scale * gain[i] if normed else value


@inlined
def rotate(row, cos_sin, d, factor):
    """Rotate ``row[:d]`` in place by the angles of its position and multiply it by `factor`."""
    half = d // 2
    for i in range(half):
        cos, sin = cos_sin[i], cos_sin[half + i]
        first, second = row[i], row[half + i]
        row[i] = (first * cos - second * sin) * factor
        row[half + i] = (second * cos + first * sin) * factor


@kernel
def rope_append(thread, threads, T, qkv, heads, cos_sin, start, q_gain, k_gain, eps, cache, rows):
    """Rotate the queries, rotate and append the keys, append the values of positions ``start..start + T``.

    qkv : float32 [>= T, >= (H + 2 G) d], q then k then v; heads : H; cos_sin : float32 [T, d], cos then sin;
    q_gain, k_gain : float32 [d], or [0] for none; cache : one layer's front buffers; rows : float32 [threads, >= d].
    """
    G, d = cache.keys.shape[0], cos_sin.shape[1]
    factor = np.float32(1.4426950408889634 / np.sqrt(d))
    first, last = share(thread, threads, T * (heads + G))
    row = rows[thread]
    for item in range(first, last):
        t, h = item // (heads + G), item % (heads + G)
        place = t * qkv.shape[1] + h * d
        if h < heads:
            copy_head(qkv, place, q_gain, eps, row, d)
            rotate(row, cos_sin[t], d, factor)
            for i in range(d):
                qkv[t, h * d + i] = row[i]
        else:
            copy_head(qkv, place, k_gain, eps, row, d)
            rotate(row, cos_sin[t], d, np.float32(1))
            store_key(cache, h - heads, start + t, row, d)
            for i in range(d):
                row[i] = qkv[t, (h + G) * d + i]
            store_value(cache, h - heads, start + t, row, d, t == T - 1)
