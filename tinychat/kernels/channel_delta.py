"""Kimi Delta Attention: Gated DeltaNet whose states forget by channel of the key.

Of a position's q, k and v, which `kernels.delta_net.convolve` has convolved, of a number b of each head, of a vector a
of each head, one number for each channel of its key, and of gates z, with the layer's A of each head and t of each
channel,

    g = exp(-exp(A[h]) softplus(a[h] + t[h]))        k' = k / sqrt(|k|**2 + 1e-6)
    S = diag(g) S + k' (sigmoid(b[h]) (v - (diag(g) S)^T k'))^T     q' = q / sqrt(|q|**2 + 1e-6) / sqrt(dk)
    out = norm(S^T q') sigmoid(z)

(Kimi Team, 2025, https://arxiv.org/abs/2510.26692). With a bound l of decays' logarithms, ``g = exp(l sigmoid(exp(A[h])
(a[h] + t[h])))``. Each head has keys and queries of its own. States are as in
`kernels.delta_net`, and so are the bits.
"""

import numpy as np

from tinychat.kernels.delta_net import (
    AFTER,
    BETWEEN,
    FLOAT,
    NARROW,
    WIDE,
    begin_columns,
    copy_vectors,
    inverse_length,
    is_snapshot,
    matrix_offset,
    share_state_columns,
)
from tinychat.kernels.jit import noinline
from tinychat.kernels.memory import floats_at, load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.simd import LOG2_E, exp2, max_lanes, sigmoid, softplus, splat_f32
from tinychat.kernels.sizes import LANES, ONE_TOKEN
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.tile import add_outer, corrected, load_rows, scaled, store_tokens, zero_tile


@stage
def channel_factors(team, T, gates, log_decay, bias, x, sizes, decays, factors):
    """Turn each row's vectors into decays, in place; write decayed keys, rates, and factors of keys and queries.

    gates : float32 [>= T, >= R + H], b behind R other numbers; log_decay : float32 [H], A; bias : float32 [H d], t;
    x : float32 [>= T, >= channels], queries then keys; decays : float32 [>= T, >= 2 H d], a, behind which the products
    of decays and keys are written; factors : float32 [>= T, >= 3 H], rates, factors of keys, of queries.
    """
    heads, d, bound = sizes.key_heads, sizes.key_dim, sizes.decay_bound
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        start, query, out = t * decays.shape[1] + h * d, t * x.shape[1] + h * d, t * factors.shape[1] + h
        key = query + heads * d
        speed = exp2(splat_f32(log_decay[h]) * LOG2_E)
        for i in range(0, d, LANES):
            step = load_f32(decays, start + i) + load_f32(bias, h * d + i)
            if bound < 0:
                decay = exp2(sigmoid(speed * step) * bound * LOG2_E)
            else:
                decay = exp2(speed * softplus(step) * -LOG2_E)
            store_f32(decays, start + i, decay)
            store_f32(decays, start + heads * d + i, decay * load_f32(x, key + i))
        rate = sizes.rate_scale * sigmoid(splat_f32(load_one(gates, t * gates.shape[1] + sizes.decay_rank + h)))
        store_one(factors, out, max_lanes(rate))
        store_one(factors, out + heads, inverse_length(x, key, d))
        store_one(factors, out + 2 * heads, inverse_length(x, query, d) / np.sqrt(np.float32(d)))


@noinline
def scan_channels(batch, x, decays, factors, layer, sizes, out, i, h, column, vectors):
    """Scan the rows of sequence `i` with some columns of the state of head `h`; write what these give."""
    heads, d, stride = sizes.key_heads, sizes.key_dim, sizes.key_dim * LANES
    offset = matrix_offset(layer, sizes, h, column)
    after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
    before = floats_at(begin_columns(batch, i, offset, len(vectors) * d))
    for t in range(batch.firsts[i], batch.firsts[i + 1]):
        row, scales, start = t * x.shape[1], t * factors.shape[1] + h, t * decays.shape[1] + h * d
        query, key = row + h * d, row + (heads + h) * d
        rate, of_key = load_one(factors, scales), load_one(factors, scales + heads)
        recalled = zero_tile(vectors, ONE_TOKEN)
        for j in range(d):
            state = load_rows(before, j * LANES, stride, vectors)
            recalled = add_outer(recalled, state, decays, start + heads * d + j, 0)
        values = load_rows(x, row + 2 * heads * d + h * sizes.value_dim + column, LANES, vectors)
        change = corrected(values, recalled, of_key, rate * of_key)
        total = zero_tile(vectors, ONE_TOKEN)
        for j in range(d):
            state = scaled(load_rows(before, j * LANES, stride, vectors), load_one(decays, start + j))
            state = add_outer(state, change, x, key + j, 0)
            store_tokens(after, j * LANES, stride, state, vectors)
            total = add_outer(total, state, x, query + j, 0)
        found = scaled(total, load_one(factors, scales + 2 * heads))
        store_tokens(out, t * out.shape[1] + h * sizes.value_dim + column, LANES, found, vectors)
        before = after
        if is_snapshot(batch, i, t):
            copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), 0, LANES, len(vectors) * d)


@stage
def channel_rule(team, batch, x, decays, factors, layer, sizes, out):
    """Scan the rows of each sequence, from the state before the step to that after it.

    batch : as in `delta_net.convolve`; x : float32 [>= T, >= channels], convolved; decays, factors : of
    `channel_factors`; out : float32 [>= T, >= H dv].
    """
    size, (width, first, last) = sizes.value_dim, share_state_columns(team, sizes)
    for item in range(first, last):
        h, column = item * width // size, item * width % size
        for i in range(batch.counts[2]):
            if width > LANES:
                scan_channels(batch, x, decays, factors, layer, sizes, out, i, h, column, WIDE)
            else:
                scan_channels(batch, x, decays, factors, layer, sizes, out, i, h, column, NARROW)


@stage
def norm_sigmoid(team, T, gates, gain, sizes, out):
    """RMS-norm each head's result in place, and multiply it by the sigmoid of its gates.

    gates : float32 [>= T, >= H dv]; gain : float32 [dv]; out : of `channel_rule`.
    """
    heads, size = sizes.value_heads, sizes.value_dim
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        start, gate = t * out.shape[1] + h * size, t * gates.shape[1] + h * size
        scale = inverse_rms(out, start, size, sizes.state_norm_eps)
        for i in range(0, size, LANES):
            normed = load_f32(out, start + i) * scale * load_f32(gain, i)
            store_f32(out, start + i, normed * sigmoid(load_f32(gates, gate + i)))
