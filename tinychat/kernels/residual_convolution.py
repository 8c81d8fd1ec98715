"""Short convolutions that are added to their input, over the positions of each sequence (Inkling 2).

    y[t, c] = (x[t, c] + sum_i a[i, c] x[t - i, c]) / sqrt(K + 1)

With taps for each token, a[i, c] + b[t, h, i] for the channels c of head h take a's place, and 2 K + 1 that of K + 1
(github.com/huggingface/transformers, models/inkling2_loop). Before position 0, x is 0. A state holds the last K - 1
inputs of each channel, float32 [K - 1, C], the oldest first; see `kernels.delta_net` for how states are read and
written.
"""

import numpy as np

from tinychat.kernels.delta_net import AFTER, BETWEEN, FLOAT, begin_vectors, copy_vectors, is_snapshot
from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import floats_at, load_f32, load_one, store_f32
from tinychat.kernels.simd import fma, splat_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage


@always_inline
def shift_inputs(after, c, channels, back, now):
    """Drop the oldest input of 16 channels of a state, and add the present one."""
    for j in range(1, back):
        store_f32(after, (j - 1) * channels + c, load_f32(after, j * channels + c))
    store_f32(after, (back - 1) * channels + c, now)


@always_inline
def finish_row(batch, i, t, after, offset, c, channels, back, now):
    """Add the inputs of row `t` of sequence `i` to its state, 16 channels, and copy that where it is wanted."""
    shift_inputs(after, c, channels, back, now)
    if is_snapshot(batch, i, t):
        copy_vectors(after, floats_at(batch.states[BETWEEN, i] + FLOAT * offset), c, channels, back)


@stage
def convolve_rows(team, batch, x, taps, offset, sizes):
    """Convolve the channels of each row with those before it, in place; write the last inputs.

    batch : as in `kernels.delta_net.convolve`; x : float32 [>= T, >= C], C a multiple of 16; taps : float32 [K C], the
    last row for the position itself; offset : where the convolution's part of a state begins.
    """
    back, channels = sizes.taps - 1, taps.shape[0] // sizes.taps
    factor = np.float32(1) / np.sqrt(np.float32(sizes.taps + 1))
    first, last = share_of(team, channels // LANES)
    for i in range(batch.counts[2]):
        after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
        for c in range(first * LANES, last * LANES, LANES):
            begin_vectors(batch, i, after, offset, c, channels, back)
            for t in range(batch.firsts[i], batch.firsts[i + 1]):
                index = t * x.shape[1] + c
                now = load_f32(x, index)
                total = now
                for j in range(back):
                    total = fma(load_f32(after, j * channels + c), load_f32(taps, j * channels + c), total)
                total = fma(now, load_f32(taps, back * channels + c), total)
                store_f32(x, index, total * factor)
                finish_row(batch, i, t, after, offset, c, channels, back, now)


@stage
def convolve_by_token(team, batch, x, taps, token_taps, offset, sizes):
    """Convolve as `convolve_rows` does, with taps of each token and head beside those of all.

    taps : float32 [K C], the first row for the position itself; token_taps : float32 [>= T, >= H K], those of a head
    side by side, the first for the position itself.
    """
    back, channels, d = sizes.taps - 1, taps.shape[0] // sizes.taps, sizes.head_dim
    factor = np.float32(1) / np.sqrt(np.float32(2 * sizes.taps + 1))
    first, last = share_of(team, channels // LANES)
    for i in range(batch.counts[2]):
        after = floats_at(batch.states[AFTER, i] + FLOAT * offset)
        for c in range(first * LANES, last * LANES, LANES):
            begin_vectors(batch, i, after, offset, c, channels, back)
            for t in range(batch.firsts[i], batch.firsts[i + 1]):
                index, tap = t * x.shape[1] + c, t * token_taps.shape[1] + c // d * sizes.taps
                now = load_f32(x, index)
                total = now
                for j in range(back):
                    lag = back - j
                    factors = load_f32(taps, lag * channels + c) + splat_f32(load_one(token_taps, tap + lag))
                    total = fma(load_f32(after, j * channels + c), factors, total)
                total = fma(now, load_f32(taps, c) + splat_f32(load_one(token_taps, tap)), total)
                store_f32(x, index, total * factor)
                finish_row(batch, i, t, after, offset, c, channels, back, now)
