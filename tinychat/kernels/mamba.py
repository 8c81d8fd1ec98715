"""Mamba-2 over the positions of each sequence: a scan with a state for each head, behind a short convolution.

Of a position's x, B and C, which `kernels.delta_net.convolve` has convolved, of its gates z and of a number d of each
head h, with the layer's A, D and t,

    s = clamp(softplus(d[h] + t[h]))        S = exp(-exp(A[h]) s) S + s B x^T        out = (S^T C + D[h] x) silu(z)

(Dao and Gu, 2024, https://arxiv.org/abs/2405.21060). Several heads read one B and one C. Afterwards, groups of channels
are normed. States are as in `kernels.delta_net`, with x, B and C as values, keys and queries, and so are the bits.
"""

import numpy as np

from tinychat.kernels.delta_net import (
    AFTER,
    BETWEEN,
    FLOAT,
    NARROW,
    WIDE,
    begin_columns,
    channels_of,
    copy_vectors,
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
from tinychat.kernels.tile import add_outer, load_rows, scaled, store_tokens, zero_tile


@stage
def step_factors(team, T, steps, log_decay, bias, limits, sizes, factors):
    """Write each row's decay and step of each head.

    steps : float32 [>= T, >= H]; log_decay, bias : float32 [H], A and t; limits : float32 [2]; factors : float32
    [>= T, >= 2 H], decays, then steps.
    """
    heads = sizes.value_heads
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        found = max_lanes(softplus(splat_f32(load_one(steps, t * steps.shape[1] + h) + bias[h])))
        step = min(max(found, limits[0]), limits[1])
        decay = exp2(exp2(splat_f32(log_decay[h]) * LOG2_E) * step * -LOG2_E)
        store_one(factors, t * factors.shape[1] + h, max_lanes(decay))
        store_one(factors, t * factors.shape[1] + heads + h, np.float32(step))


@noinline
def scan_columns(batch, x, factors, skip, layer, sizes, out, i, h, column, vectors):
    """Scan the rows of sequence `i` with some columns of the state of head `h`; write what these give."""
    heads, size, d, C = sizes.value_heads, sizes.value_dim, sizes.key_dim, channels_of(sizes)
    stride, offset = d * LANES, matrix_offset(layer, sizes, h, column)
    first_key = heads * size + h // (heads // sizes.key_heads) * d
    after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
    before = floats_at(begin_columns(batch, i, offset, len(vectors) * d))
    for t in range(batch.firsts[i], batch.firsts[i + 1]):
        row, scales = t * x.shape[1], t * factors.shape[1]
        key, query = row + first_key, row + first_key + sizes.key_heads * d
        decay, step = load_one(factors, scales + h), load_one(factors, scales + heads + h)
        value, gate = row + h * size + column, row + C + h * size + column
        values = load_rows(x, value, LANES, vectors)
        change = scaled(values, step)
        total = zero_tile(vectors, ONE_TOKEN)
        for j in range(d):
            state = scaled(load_rows(before, j * LANES, stride, vectors), decay)
            state = add_outer(state, change, x, key + j, 0)
            store_tokens(after, j * LANES, stride, state, vectors)
            total = add_outer(total, state, x, query + j, 0)
        target = t * out.shape[1] + h * size + column
        store_tokens(out, target, LANES, add_outer(total, values, skip, h, 0), vectors)
        for j in range(0, len(vectors) * LANES, LANES):
            z = load_f32(x, gate + j)
            store_f32(out, target + j, load_f32(out, target + j) * (z * sigmoid(z)))
        before = after
        if is_snapshot(batch, i, t):
            copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), 0, LANES, len(vectors) * d)


@stage
def scan_steps(team, batch, x, factors, skip, layer, sizes, out):
    """Scan the rows of each sequence, from the state before the step to that after it.

    batch : as in `convolve`; x : float32 [>= T, >= channels + H P], values, keys and queries, convolved, and gates;
    factors : of `step_factors`; skip : float32 [H], D; out : float32 [>= T, >= H P].
    """
    size, (width, first, last) = sizes.value_dim, share_state_columns(team, sizes)
    for item in range(first, last):
        h, column = item * width // size, item * width % size
        for i in range(batch.counts[2]):
            if width > LANES:
                scan_columns(batch, x, factors, skip, layer, sizes, out, i, h, column, WIDE)
            else:
                scan_columns(batch, x, factors, skip, layer, sizes, out, i, h, column, NARROW)


@stage
def norm_groups(team, T, gain, sizes, out):
    """RMS-norm the channels of the heads that read one key, together, in place.

    gain : float32 [H P]; out : float32 [>= T, >= H P].
    """
    groups = sizes.key_heads
    size = sizes.value_heads // groups * sizes.value_dim
    first, last = share_of(team, T * groups)
    for item in range(first, last):
        t, column = item // groups, item % groups * size
        start = t * out.shape[1] + column
        scale = inverse_rms(out, start, size, sizes.rms_norm_eps)
        for i in range(0, size, LANES):
            store_f32(out, start + i, load_f32(out, start + i) * scale * load_f32(gain, column + i))
