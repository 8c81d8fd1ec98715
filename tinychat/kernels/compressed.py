"""Compressed convolutional attention: what is done to queries, keys and values before they meet.

Of a position's queries q and keys k, of each channel c, and of the heads h of queries that read the head g of keys,

    z[c]  = a[c] u[c] + b[c] (u[c] of the position before) + e[c]         u = q and k, one after the other
    y[h]  = A[h] z[h] + B[h] (z[h] of the position before) + f[h]         of heads of keys, too
    q'[h] = unit(y[h] + (q[h] + k[g]) / 2) sqrt(d)
    k'[g] = unit(y[g] + (mean of q[h] + k[g]) / 2) sqrt(d) s[g]

where unit brings a vector to length 1; the second half of all channels of values is that of the position before
(Zyphra, 2025, https://arxiv.org/abs/2510.04476). Before position 0, u and values are 0, and z is e.

The state of a sequence, float32, has for each layer u and z of the last position [(H + G) d each] and the half of its
values that is yet to come [G d / 2]. See `kernels.delta_net` for how states are read and written.
"""

import numpy as np

from tinychat.kernels.delta_net import AFTER, BEFORE, BETWEEN, FLOAT, begin_vectors, copy_vectors, is_snapshot
from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import floats_at, load_f32, load_one, store_f32
from tinychat.kernels.simd import fma, splat_f32, sum_lanes
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage

# Vectors are not shorter: as PyTorch's ``finfo(float32).eps``.
SHORTEST = np.finfo(np.float32).eps


@always_inline
def layer_offset(layer, sizes):
    """Return where a layer's part of a state begins."""
    return layer * (2 * sizes.value_heads * sizes.value_dim + sizes.key_heads * sizes.value_dim // 2)


@always_inline
def convolve_channels(x, index, after, c, channels, taps, bias, pairs, target, d):
    """Convolve 16 channels of a row with the row before; write z of both rows, and keep u and z.

    index : of u in `x`; after : the layer's state; c : the first channel; target : of z of the row before in `pairs`.
    """
    now, before = load_f32(x, index), load_f32(after, channels + c)
    total = fma(load_f32(after, c), load_f32(taps, c), load_f32(bias, c))
    total = fma(now, load_f32(taps, channels + c), total)
    store_f32(pairs, target, before)
    store_f32(pairs, target + d, total)
    store_f32(after, c, now)
    store_f32(after, channels + c, total)


@always_inline
def channel_of(j, queries, keys, group, d):
    """Return the channel of head `j` of a group: heads of queries, from `queries` on, then that of `keys`."""
    return keys if j == group else queries + j * d


@always_inline
def average_heads(x, queries, keys, group, d):
    """Write half of the sum of each query and the key, 16 channels of each, in place, then the mean of these."""
    key, total = load_f32(x, keys), splat_f32(0.0)
    for j in range(group):
        both = (load_f32(x, queries + j * d) + key) * 0.5
        store_f32(x, queries + j * d, both)
        total = total + both
    store_f32(x, keys, total / np.float32(group))


@always_inline
def delay_values(x, index, after, c):
    """Exchange 16 channels of a row and those that the state keeps."""
    now = load_f32(x, index)
    store_f32(x, index, load_f32(after, c))
    store_f32(after, c, now)


@stage
def convolve_heads(team, batch, x, taps, bias, layer, sizes, pairs):
    """Convolve each channel of queries and keys; delay half of the values; leave the means of queries and keys.

    batch : as in `kernels.delta_net.convolve`; x : float32 [>= T, >= (H + 2 G) d], q then k then v; taps : float32
    [2 (H + G) d], the last row for the position itself; bias : float32 [(H + G) d]; pairs : float32 [>= T, >= (H + G)
    2 d], of each head z of the position before, then of the position itself.
    """
    G, d, channels = sizes.key_heads, sizes.value_dim, sizes.value_heads * sizes.value_dim
    group, vectors, offset = sizes.value_heads // G - 1, d // LANES, layer_offset(layer, sizes)
    first, last = share_of(team, G * vectors)
    for i in range(batch.counts[2]):
        after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
        for item in range(first, last):
            g, v = item // vectors, item % vectors * LANES
            # There are half as many vectors of delayed values as of keys: every other item has one.
            queries, keys, values = g * group * d + v, (group * G + g) * d + v, 2 * channels + item // 2 * LANES
            for j in range(group + 1):
                c = channel_of(j, queries, keys, group, d)
                begin_vectors(batch, i, after, offset, c, d, 1)
                begin_outputs(batch, i, after, offset, channels, c, bias)
            if item % 2 == 0:
                begin_vectors(batch, i, after, offset, values, d, 1)
            for t in range(batch.firsts[i], batch.firsts[i + 1]):
                row = t * x.shape[1]
                for j in range(group + 1):
                    c = channel_of(j, queries, keys, group, d)
                    # In `pairs`, 2 d elements are of a head that has d channels.
                    target = t * pairs.shape[1] + 2 * (c - v) + v
                    convolve_channels(x, row + c, after, c, channels, taps, bias, pairs, target, d)
                average_heads(x, row + queries, row + keys, group, d)
                if item % 2 == 0:
                    delay_values(x, row + channels + G * d // 2 + item // 2 * LANES, after, values)
                if is_snapshot(batch, i, t):
                    between = floats_at(batch.states[BETWEEN, i] + FLOAT * offset)
                    for j in range(group + 1):
                        copy_vectors(after, between, channel_of(j, queries, keys, group, d), channels, 2)
                    if item % 2 == 0:
                        copy_vectors(after, between, values, d, 1)


@always_inline
def begin_outputs(batch, i, after, offset, channels, c, bias):
    """Copy z of 16 channels of the state that sequence `i` had before the step, biases if it had none."""
    if batch.states[BEFORE, i] != 0:
        begin_vectors(batch, i, after, offset, channels + c, 0, 1)
    else:
        store_f32(after, channels + c, load_f32(bias, c))


@stage
def norm_lengths(team, T, convolved, key_scales, sizes, qkv):
    """Add what the second convolution gives to queries and keys, and bring each to its length, in place.

    convolved : float32 [>= T, >= (H + G) d]; key_scales : float32 [G]; qkv : as `x` of `convolve_heads`.
    """
    heads, d = sizes.value_heads, sizes.value_dim
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        start, source, squares = t * qkv.shape[1] + h * d, t * convolved.shape[1] + h * d, splat_f32(0.0)
        for i in range(0, d, LANES):
            v = load_f32(qkv, start + i) + load_f32(convolved, source + i)
            store_f32(qkv, start + i, v)
            squares = fma(v, v, squares)
        scale = np.sqrt(np.float32(d)) / max(np.sqrt(sum_lanes(squares)), SHORTEST)
        if h >= heads - sizes.key_heads:
            scale = scale * load_one(key_scales, h - heads + sizes.key_heads)
        for i in range(0, d, LANES):
            store_f32(qkv, start + i, load_f32(qkv, start + i) * scale)
