"""Four residual streams, of which a layer runs one and corrects the others by it (AltUp), and LAuReL (Gemma 3n).

    m(x)        = tanh(W (x / rms(x) * gain))                  four numbers of a token
    predicted_i = x_i + sum_j (P m(x_0))[4 i + j] x_j
    corrected_i = predicted_i + (1 + (C m(y))_i) (y - predicted_0)       y : what the layer makes of predicted_0

(Baykal et al., 2023, https://arxiv.org/abs/2301.13310; LAuReL: Menghani et al., 2024, https://arxiv.org/abs/2411.07501).
Stream 0 is the residual stream of all other stages. The others stand side by side in one array: D, the `hidden_size`,
is a multiple of 16. Sums run over the columns in lanes, then over the lanes by halves, then over the four streams.
"""

import numpy as np

from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import mean_square, moments_of, normed
from tinychat.kernels.scores import soft_cap
from tinychat.kernels.simd import fma, splat_f32, sum_lanes
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_columns, share_of, stage

STREAMS = 4
OTHERS = STREAMS - 1
SQUARED_FLOOR = np.float32(1e-5)  # a stream's mean square counts as this, if it is less
HALF_ROOT = np.float32(0.7071067811865476)  # the square root of a half


@stage
def route_streams(team, T, hidden, router, sizes, out):
    """Write to ``out[t]`` the matrix of the router times ``m(hidden[t])``.

    hidden : float32 [>= T, >= D]; router : `StreamRouter`, whose `weight` is float32 [4 D], and its `mixing` [n 4];
    out : float32 [>= T, 32], n of each row are the result.
    """
    D, count = sizes.hidden_size, router.mixing.shape[0] // STREAMS
    first, last = share_of(team, T)
    for t in range(first, last):
        start, target = t * hidden.shape[1], t * out.shape[1]
        middle = target + LANES
        moments = moments_of(router.norm, hidden, start, D, sizes.rms_norm_eps)
        a = b = c = d = splat_f32(0.0)
        for k in range(0, D, LANES):
            v = normed(router.norm, moments, load_f32(hidden, start + k), k)
            a = fma(v, load_f32(router.weight, k), a)
            b = fma(v, load_f32(router.weight, D + k), b)
            c = fma(v, load_f32(router.weight, 2 * D + k), c)
            d = fma(v, load_f32(router.weight, 3 * D + k), d)
        store_one(out, middle, sum_lanes(a))
        store_one(out, middle + 1, sum_lanes(b))
        store_one(out, middle + 2, sum_lanes(c))
        store_one(out, middle + 3, sum_lanes(d))
        store_f32(out, middle, soft_cap(load_f32(out, middle), np.float32(1)))
        for i in range(count):
            total = np.float32(0)
            for j in range(STREAMS):
                total += router.mixing[STREAMS * i + j] * load_one(out, middle + j)
            store_one(out, target + i, total)


@always_inline
def predicted(factors, row, stream, x, a, b, c, d):
    """Return 16 columns of the prediction of a stream, `x`, from those of all four."""
    first = row + STREAMS * stream
    total = load_one(factors, first) * a
    total = fma(splat_f32(load_one(factors, first + 1)), b, total)
    total = fma(splat_f32(load_one(factors, first + 2)), c, total)
    return x + fma(splat_f32(load_one(factors, first + 3)), d, total)


@stage
def predict_streams(team, T, factors, sizes, hidden, others, before):
    """Predict all streams, in offset, and write the prediction of stream 0 to `before` too.

    factors : float32 [>= T, >= 16]; hidden, before : float32 [>= T, >= D]; others : float32 [>= T, >= 3 D].
    """
    D = sizes.hidden_size
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        row, target, start = t * factors.shape[1], t * hidden.shape[1], t * others.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            a, b = load_f32(hidden, target + k), load_f32(others, start + k)
            c, d = load_f32(others, start + D + k), load_f32(others, start + 2 * D + k)
            own = predicted(factors, row, 0, a, a, b, c, d)
            store_f32(hidden, target + k, own)
            store_f32(before, t * before.shape[1] + k, own)
            store_f32(others, start + k, predicted(factors, row, 1, b, a, b, c, d))
            store_f32(others, start + D + k, predicted(factors, row, 2, c, a, b, c, d))
            store_f32(others, start + 2 * D + k, predicted(factors, row, 3, d, a, b, c, d))


@stage
def add_laurel(team, T, branch, norm, before, input_norm, sizes, hidden):
    """Write ``sqrt(1/2) (hidden + normed input + normed branch)`` to `hidden`: attention's end beside LAuReL's.

    branch, before, hidden : float32 [>= T, >= D]; norm, input_norm : those of `branch` and of `before`.
    """
    D, eps = sizes.hidden_size, sizes.rms_norm_eps
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        start, source, target = t * branch.shape[1], t * before.shape[1], t * hidden.shape[1]
        moments, of_input = moments_of(norm, branch, start, D, eps), moments_of(input_norm, before, source, D, eps)
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            laurel = normed(input_norm, of_input, load_f32(before, source + k), k)
            laurel = laurel + normed(norm, moments, load_f32(branch, start + k), k)
            store_f32(hidden, target + k, (load_f32(hidden, target + k) + laurel) * HALF_ROOT)


@stage
def correct_streams(team, T, factors, scale, sizes, before, hidden, others):
    """Correct all streams, in offset, and write stream 0 times `scale` to `before`, where its prediction is.

    factors : float32 [>= T, >= 4]; scale : float32 [D]; before, hidden : float32 [>= T, >= D]; others : float32
    [>= T, >= 3 D].
    """
    D = sizes.hidden_size
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        row, source, target = t * factors.shape[1], t * before.shape[1], t * hidden.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            guess = load_f32(before, source + k)
            news = load_f32(hidden, target + k) - guess
            own = fma(splat_f32(load_one(factors, row) + np.float32(1)), news, guess)
            store_f32(hidden, target + k, own)
            store_f32(before, source + k, own * load_f32(scale, k))
            for i in range(OTHERS):
                offset = t * others.shape[1] + i * D + k
                factor = splat_f32(load_one(factors, row + 1 + i) + np.float32(1))
                store_f32(others, offset, fma(factor, news, load_f32(others, offset)))


@stage
def add_to_streams(team, T, branch, norm, sizes, others):
    """Add to all streams but stream 0 what a norm makes of a branch's row, float32 [>= T, >= D]."""
    D = sizes.hidden_size
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        start = t * branch.shape[1]
        moments = moments_of(norm, branch, start, D, sizes.rms_norm_eps)
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            value = normed(norm, moments, load_f32(branch, start + k), k)
            for i in range(OTHERS):
                offset = t * others.shape[1] + i * D + k
                store_f32(others, offset, load_f32(others, offset) + value)


@always_inline
def scale_to(wanted, wanted_start, values, start, D):
    """Return the factor that brings D of `values` to the root mean square of D of `wanted`."""
    size = np.sqrt(mean_square(wanted, wanted_start, D, np.float32(0)))
    return size / np.sqrt(max(mean_square(values, start, D, np.float32(0)), SQUARED_FLOOR))


@stage
def match_streams(team, T, hidden, sizes, others):
    """Bring each of the other streams to the root mean square of stream 0, `hidden`, in offset."""
    D = sizes.hidden_size
    first, last = share_of(team, OTHERS * T)
    for item in range(first, last):
        t = item // OTHERS
        start = t * others.shape[1] + item % OTHERS * D
        scale = splat_f32(scale_to(hidden, t * hidden.shape[1], others, start, D))
        for k in range(start, start + D, LANES):
            store_f32(others, k, load_f32(others, k) * scale)


@stage
def pick_stream(team, T, rows, others, stream, sizes, out):
    """Copy the rows whose logits are wanted of one of the other streams, counted from 0; out : float32 [>= T, >= D]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        source = rows[t] * others.shape[1] + stream * sizes.hidden_size
        for k in range(0, sizes.hidden_size, LANES):
            store_f32(out, t * out.shape[1] + k, load_f32(others, source + k))


@stage
def pick_quarter(team, T, rows, hidden, out):
    """Write a quarter of ``hidden[rows[t]]`` to ``out[t]``: the part of stream 0 in the mean of all."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for k in range(0, hidden.shape[1], LANES):
            value = load_f32(hidden, rows[t] * hidden.shape[1] + k)
            store_f32(out, t * out.shape[1] + k, value * splat_f32(1 / STREAMS))


@stage
def add_quarter(team, T, rows, hidden, branch, sizes, out):
    """Add to ``out[t]`` a quarter of ``branch[t]``, brought to the root mean square of ``hidden[rows[t]]``."""
    D = sizes.hidden_size
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        start, target = t * branch.shape[1], t * out.shape[1]
        scale = scale_to(hidden, rows[t] * hidden.shape[1], branch, start, D) * np.float32(1 / STREAMS)
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            value = load_f32(branch, start + k) * splat_f32(scale)
            store_f32(out, target + k, load_f32(out, target + k) + value)
