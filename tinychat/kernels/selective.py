"""Mamba over the positions of each sequence: a scan with a state for each channel, behind a short convolution.

Of a position's values x, which `kernels.delta_net.convolve` has convolved, of its keys B, queries C, gates z and a step
s of each channel, with the layer's decays A and shares D,

    S = exp(-A softplus(s)) S + softplus(s) x B^T        out = (S C + D x) silu(z)

(Gu and Dao, 2023, https://arxiv.org/abs/2312.00752). States are as in `kernels.delta_net`, those of one head: a channel
in a lane, numbers of B and C one behind the other. So are the bits.
"""

from tinychat.kernels.delta_net import (
    AFTER,
    BETWEEN,
    FLOAT,
    begin_columns,
    channels_of,
    copy_vectors,
    is_snapshot,
    matrix_offset,
)
from tinychat.kernels.jit import always_inline, noinline
from tinychat.kernels.memory import floats_at, load_f32, load_one, store_f32
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.simd import LOG2_E, exp2, fma, sigmoid, softplus, splat_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage


@always_inline
def norm_part(x, start, gain, eps):
    """RMS-norm as many numbers as there are gains, in place."""
    scale = inverse_rms(x, start, gain.shape[0], eps)
    for i in range(0, gain.shape[0], LANES):
        store_f32(x, start + i, load_f32(x, start + i) * scale * load_f32(gain, i))


@stage
def norm_selective(team, T, gains, sizes, low):
    """RMS-norm the vectors of steps, keys and queries, in place.

    gains : `SelectiveGains`; low : float32 [>= T, >= R + 2 N], one behind the other.
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        start = t * low.shape[1]
        key = start + gains.steps.shape[0]
        norm_part(low, start, gains.steps, sizes.rms_norm_eps)
        norm_part(low, key, gains.keys, sizes.rms_norm_eps)
        norm_part(low, key + sizes.key_dim, gains.queries, sizes.rms_norm_eps)


@noinline
def scan_channels(batch, x, steps, low, rank, decays, skip, layer, sizes, out, i, column):
    """Scan the rows of sequence `i` with the states of 16 channels; write what these give."""
    d, C = sizes.key_dim, channels_of(sizes)
    offset = matrix_offset(layer, sizes, 0, column)
    after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
    before = floats_at(begin_columns(batch, i, offset, d))
    for t in range(batch.firsts[i], batch.firsts[i + 1]):
        value, key = load_f32(x, t * x.shape[1] + column), t * low.shape[1] + rank
        step = softplus(load_f32(steps, t * steps.shape[1] + column))
        total, change, exponent = value * load_f32(skip, column), value * step, step * -LOG2_E
        for j in range(d):
            kept = load_f32(before, j * LANES) * exp2(load_f32(decays, j * C + column) * exponent)
            state = fma(change, splat_f32(load_one(low, key + j)), kept)
            store_f32(after, j * LANES, state)
            total = fma(state, splat_f32(load_one(low, key + d + j)), total)
        z = load_f32(x, t * x.shape[1] + C + column)
        store_f32(out, t * out.shape[1] + column, total * (z * sigmoid(z)))
        before = after
        if is_snapshot(batch, i, t):
            copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), 0, LANES, d)


@stage
def scan_selective(team, batch, x, steps, low, gains, decays, skip, layer, sizes, out):
    """Scan the rows of each sequence, from the state before the step to that after it.

    batch : as in `convolve`; x : float32 [>= T, >= 2 C], values, convolved, and gates; steps : float32 [>= T, >= C];
    low, gains : of `norm_selective`; decays : float32 [N C], those of all channels for the first number of their states
    first; skip : float32 [C]; out : float32 [>= T, >= C].
    """
    rank = gains.steps.shape[0]
    first, last = share_of(team, channels_of(sizes) // LANES)
    for item in range(first, last):
        for i in range(batch.counts[2]):
            scan_channels(batch, x, steps, low, rank, decays, skip, layer, sizes, out, i, item * LANES)
