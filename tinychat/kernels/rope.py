"""Rotary position embedding and the append to the KV cache.

Half-split convention (Hugging Face): channel i pairs with i + d/2,

    y[i]       = x[i] * cos - x[i + d/2] * sin
    y[i + d/2] = x[i + d/2] * cos + x[i] * sin

(Su et al., 2021). Queries are rotated where they stand and take the softmax's factor ``log2(e) / sqrt(d)`` along,
since attention works in powers of two. Keys and values go to the front buffers of the cache: keys
[G, context/16, d, 16], a lane is a key; values [G, context, d rounded up to 16].
"""

import numpy as np

from tinychat.kernels.activations import inverse_rms
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.policy import inlined, kernel
from tinychat.kernels.simd import LANES, keep_lanes
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


@inlined
def append_key(keys, g, position, row, d):
    """Store a key as a lane of its block of 16."""
    first = (g * keys.shape[1] + position // LANES) * d * LANES + position % LANES
    for i in range(d):
        store_one(keys, first + i * LANES, row[i])


@inlined
def append_value(values, g, position, qkv, start, d):
    """Store a value row, zero beyond `d`."""
    first = (g * values.shape[1] + position) * values.shape[2]
    for i in range(0, d, LANES):
        store_f32(values, first + i, keep_lanes(load_f32(qkv, start + i), 0, d - i))


@kernel
def rope_append(thread, threads, T, qkv, heads, cos_sin, start, q_gain, k_gain, eps, keys, values, rows):
    """Rotate the queries, rotate and append the keys, append the values of positions ``start..start + T``.

    qkv : float32 [>= T, >= (H + 2 G) d], q then k then v; heads : H; cos_sin : float32 [T, d], cos then sin;
    q_gain, k_gain : float32 [d], or [0] for none; keys, values : one layer's front buffers, float32 or float16;
    rows : float32 [threads, >= d].
    """
    G, d = keys.shape[0], keys.shape[2]
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
            append_key(keys, h - heads, start + t, row, d)
            append_value(values, h - heads, start + t, qkv, place + G * d, d)
