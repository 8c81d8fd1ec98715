"""Gated DeltaNet over the positions of each sequence: a short convolution, then a scan with a state for each head.

Of a position's q, k and v, which are convolved with those before them and pass SiLU, and of two numbers a and b of each
value head h, with the layer's A and t,

    g = exp(-exp(A[h]) softplus(a[h] + t[h]))        k' = k / sqrt(|k|**2 + 1e-6)
    S = g S + k' (sigmoid(b[h]) (v - g S^T k'))^T     q' = q / sqrt(|q|**2 + 1e-6) / sqrt(dk)
    out = S^T q'

(Yang et al., 2024, https://arxiv.org/abs/2412.06464). Several value heads read one head of keys and queries.

The state of a sequence, float32, has for each such layer the convolution's last K - 1 inputs [K - 1, channels], the
oldest first, and S as [Hv, dv / 16, dk, 16]: a column in a lane. A step reads a state and writes another one, so what
it began with stays valid. Sums over a head's channels ascend, positions follow one another, and threads share columns:
so the bits are the same in any chunks and on any threads.
"""

import numpy as np

from tinychat.kernels.jit import always_inline, noinline
from tinychat.kernels.memory import floats_at, load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.simd import LOG2_E, exp2, fma, max_lanes, sigmoid, softplus, splat_f32, sum_lanes
from tinychat.kernels.sizes import LANES, ONE_TOKEN
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.tile import add_outer, corrected, load_rows, scaled, store_tokens, zero_tile

TINY = np.float32(1e-6)  # added to the squared length of queries and keys
FLOAT = 4  # bytes
# Rows of `Batch.states`: addresses, and the number of positions after which the one between is wanted.
BEFORE, AFTER, BETWEEN, WANTED = 0, 1, 2, 3
# Columns of a state that a thread scans at once, in vectors: as many as hide the latency of a multiply-add.
WIDE, NARROW = (0,) * 4, (0,)


@always_inline
def channels_of(sizes):
    """Return the number of channels of the convolution."""
    return 2 * sizes.key_heads * sizes.key_dim + sizes.value_heads * sizes.value_dim


@always_inline
def layer_offset(layer, sizes):
    """Return where a layer's part of a state begins."""
    matrices = sizes.value_heads * sizes.key_dim * sizes.value_dim
    return layer * ((sizes.taps - 1) * channels_of(sizes) + matrices)


@always_inline
def matrix_offset(layer, sizes, h, column):
    """Return where columns of the matrix of value head `h` begin, from a whole vector of them on."""
    of_layer = layer_offset(layer, sizes) + (sizes.taps - 1) * channels_of(sizes)
    return of_layer + (h * sizes.value_dim + column) * sizes.key_dim


@always_inline
def begin_columns(batch, i, offset, count):
    """Return the address of `count` vectors of the state that sequence `i` had before the step; clear them without any.

    Cleared are those of the state after the step.
    """
    address = batch.states[BEFORE, i]
    if address == 0:
        address = batch.states[AFTER, i]
        after = floats_at(address + FLOAT * offset)
        for j in range(count):
            store_f32(after, j * LANES, splat_f32(0.0))
    return address + FLOAT * offset


@always_inline
def is_snapshot(batch, i, t):
    """Return whether the state of sequence `i` after row `t` is wanted."""
    return batch.states[WANTED, i] == batch.positions[t] + 1


@always_inline
def copy_vectors(source, target, index, stride, count):
    """Copy `count` vectors, `stride` elements apart, to the same elements of another array."""
    for j in range(count):
        store_f32(target, index + j * stride, load_f32(source, index + j * stride))


@always_inline
def begin_vectors(batch, i, target, offset, index, stride, count):
    """Copy vectors of the state that sequence `i` had before the step, zeros if it had none."""
    before = batch.states[BEFORE, i]
    if before != 0:
        copy_vectors(floats_at(before + FLOAT * offset), target, index, stride, count)
    else:
        for j in range(count):
            store_f32(target, index + j * stride, splat_f32(0.0))


@stage
def convolve(team, batch, x, taps, bias, layer, sizes):
    """Convolve the channels of each row with those before it, and apply SiLU, in place; write the last inputs.

    batch : the `positions`, the `firsts` of its sequences, and their `states`; x : float32 [>= T, >= channels]; taps :
    float32 [K * channels], the last row for the position itself; bias : float32 [channels], or none; layer : among
    those with a state.
    """
    C, back, offset = channels_of(sizes), sizes.taps - 1, layer_offset(layer, sizes)
    first, last = share_of(team, C // LANES)
    for i in range(batch.counts[2]):
        after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
        for c in range(first * LANES, last * LANES, LANES):
            begin_vectors(batch, i, after, offset, c, C, back)
            start = load_f32(bias, c) if bias.shape[0] > 0 else splat_f32(0.0)
            for t in range(batch.firsts[i], batch.firsts[i + 1]):
                index = t * x.shape[1] + c
                now, total = load_f32(x, index), start
                for j in range(back):
                    earlier = load_f32(after, j * C + c)
                    total = fma(earlier, load_f32(taps, j * C + c), total)
                    if j > 0:
                        store_f32(after, (j - 1) * C + c, earlier)
                store_f32(after, (back - 1) * C + c, now)
                total = fma(now, load_f32(taps, back * C + c), total)
                store_f32(x, index, total * sigmoid(total))
                if is_snapshot(batch, i, t):
                    copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), c, C, back)


@always_inline
def inverse_length(x, start, size):
    """Return ``1 / sqrt(sum(v**2) + 1e-6)`` of `size` numbers, lanes first."""
    squares = splat_f32(0.0)
    for i in range(start, start + size, LANES):
        v = load_f32(x, i)
        squares = fma(v, v, squares)
    return np.float32(1) / np.sqrt(sum_lanes(squares) + TINY)


@stage
def delta_factors(team, T, gates, log_decay, bias, x, sizes, factors):
    """Write each row's decay and rate of each value head, and what its keys and queries are multiplied by.

    gates : float32 [>= T, >= 2 Hv], b then a; log_decay, bias : float32 [Hv], A and t; x : float32 [>= T, >= channels],
    queries then keys; factors : float32 [>= T, >= 2 Hv + 2 Hk], decays, rates, factors of keys, of queries.
    """
    heads, groups, d = sizes.value_heads, sizes.key_heads, sizes.key_dim
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        row, out = t * gates.shape[1], t * factors.shape[1]
        speed = exp2(splat_f32(log_decay[h]) * LOG2_E)
        time = softplus(splat_f32(load_one(gates, row + heads + h) + bias[h]))
        store_one(factors, out + h, max_lanes(exp2(speed * time * -LOG2_E)))
        rate = sizes.rate_scale * sigmoid(splat_f32(load_one(gates, row + h)))
        store_one(factors, out + heads + h, max_lanes(rate))
        if h < groups:
            queries = t * x.shape[1] + h * d
            key = inverse_length(x, queries + groups * d, d)
            query = inverse_length(x, queries, d) / np.sqrt(np.float32(d))
            store_one(factors, out + 2 * heads + h, key)
            store_one(factors, out + 2 * heads + groups + h, query)


@always_inline
def share_state_columns(team, sizes):
    """Return how many columns of a state are scanned together, and this thread's share of such pieces: first, last."""
    wide = len(WIDE) * LANES
    width = wide if sizes.value_dim % wide == 0 else len(NARROW) * LANES
    first, last = share_of(team, sizes.value_heads * (sizes.value_dim // width))
    return width, first, last


@noinline
def scan_columns(batch, x, factors, layer, sizes, out, i, h, column, vectors):
    """Scan the rows of sequence `i` with some columns of the state of value head `h`; write what these give."""
    heads, groups, d = sizes.value_heads, sizes.key_heads, sizes.key_dim
    size, stride = sizes.value_dim, sizes.key_dim * LANES
    g, offset = h // (heads // groups), matrix_offset(layer, sizes, h, column)
    after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
    before = floats_at(begin_columns(batch, i, offset, len(vectors) * d))
    for t in range(batch.firsts[i], batch.firsts[i + 1]):
        row, scales = t * x.shape[1], t * factors.shape[1]
        query, key = row + g * d, row + (groups + g) * d
        decay, rate = load_one(factors, scales + h), load_one(factors, scales + heads + h)
        of_key = load_one(factors, scales + 2 * heads + g)
        of_query = load_one(factors, scales + 2 * heads + groups + g)
        recalled = zero_tile(vectors, ONE_TOKEN)
        for j in range(d):
            recalled = add_outer(recalled, load_rows(before, j * LANES, stride, vectors), x, key + j, 0)
        values = load_rows(x, row + 2 * groups * d + h * size + column, LANES, vectors)
        change = corrected(values, recalled, decay * of_key, rate * of_key)
        total = zero_tile(vectors, ONE_TOKEN)
        for j in range(d):
            state = scaled(load_rows(before, j * LANES, stride, vectors), decay)
            state = add_outer(state, change, x, key + j, 0)
            store_tokens(after, j * LANES, stride, state, vectors)
            total = add_outer(total, state, x, query + j, 0)
        store_tokens(out, t * out.shape[1] + h * size + column, LANES, scaled(total, of_query), vectors)
        before = after
        if is_snapshot(batch, i, t):
            copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), 0, LANES, len(vectors) * d)


@stage
def delta_rule(team, batch, x, factors, layer, sizes, out):
    """Scan the rows of each sequence, from the state before the step to that after it.

    batch : as in `convolve`; x : float32 [>= T, >= channels], convolved; factors : of `delta_factors`; out : float32
    [>= T, >= Hv dv].
    """
    size, (width, first, last) = sizes.value_dim, share_state_columns(team, sizes)
    for item in range(first, last):
        h, column = item * width // size, item * width % size
        for i in range(batch.counts[2]):
            if width > LANES:
                scan_columns(batch, x, factors, layer, sizes, out, i, h, column, WIDE)
            else:
                scan_columns(batch, x, factors, layer, sizes, out, i, h, column, NARROW)


@stage
def norm_gated(team, T, x, gain, sizes, out):
    """RMS-norm each value head's result in place, and multiply it by ``silu(z)``.

    x : float32 [>= T, >= channels + Hv dv], z behind the channels; gain : float32 [dv]; out : of `delta_rule`.
    """
    heads, size, C = sizes.value_heads, sizes.value_dim, channels_of(sizes)
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        start, gate = t * out.shape[1] + h * size, t * x.shape[1] + C + h * size
        scale = inverse_rms(out, start, size, sizes.state_norm_eps)
        for i in range(0, size, LANES):
            z = load_f32(x, gate + i)
            normed = load_f32(out, start + i) * scale * load_f32(gain, i)
            store_f32(out, start + i, normed * (z * sigmoid(z)))
