"""Norms of a row of numbers, by the type of their gains.

    RmsNorm    ``x / sqrt(mean(x**2) + eps) * gain``                       (Zhang and Sennrich, 2019)
    LayerNorm  ``(x - mean(x)) / sqrt(var(x) + eps) * gain + bias``        (Ba, Kiros and Hinton, 2016)
    NoNorm     ``x``
    ChannelScale  ``(x + shift) * scale``
    ClippedNorm   what another norm gives, between two bounds

Rows are zero beyond their size D, and so are gains and biases, up to whole groups of columns.
"""

import numpy as np

from tinychat.kernels.jit import always_inline, always_inline_by_type, is_kind
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.simd import fma, maximum, minimum, splat_f32, sum_lanes, zero_outside
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_columns, share_of, stage
from tinychat.kernels.variants import ChannelScale, ClippedNorm, LayerNorm, NoNorm, QueryScales


@always_inline
def inverse_rms(values, start, size, eps):
    """Return ``1 / sqrt(mean(v**2) + eps)`` over ``values[start : start + size]``, lanes first."""
    return inverse_deviation(values, start, size, np.float32(0), eps)


@always_inline
def mean_of(values, start, size):
    """Return the mean of ``values[start : start + size]``."""
    total = splat_f32(0.0)
    whole = size // LANES * LANES
    for i in range(start, start + whole, LANES):
        total = total + load_f32(values, i)
    if whole < size:
        total = total + zero_outside(load_f32(values, start + whole), 0, size - whole)
    return sum_lanes(total) / np.float32(size)


@always_inline
def inverse_deviation(values, start, size, mean, eps):
    """Return ``1 / sqrt(mean((v - mean)**2) + eps)`` over ``values[start : start + size]``."""
    return np.float32(1) / np.sqrt(mean_square(values, start, size, mean) + eps)


@always_inline
def mean_square(values, start, size, mean):
    """Return ``mean((v - mean)**2)`` over ``values[start : start + size]``, lanes first."""
    squares = splat_f32(0.0)
    whole = size // LANES * LANES
    for i in range(start, start + whole, LANES):
        v = load_f32(values, i) - mean
        squares = fma(v, v, squares)
    if whole < size:
        v = zero_outside(load_f32(values, start + whole) - mean, 0, size - whole)
        squares = fma(v, v, squares)
    return sum_lanes(squares) / np.float32(size)


@always_inline
def between(v, least, most):
    """Return 16 numbers brought between two bounds."""
    return minimum(maximum(v, least), most)


@always_inline_by_type
def moments_of(norm, values, start, size, eps):
    """Return the statistics of the row of `size` numbers that begins at ``values[start]``, for `normed`."""

    def rms(norm, values, start, size, eps):
        return inverse_rms(values, start, size, eps)

    def layer(norm, values, start, size, eps):
        mean = mean_of(values, start, size)
        return mean, inverse_deviation(values, start, size, mean, eps)

    if is_kind(norm, NoNorm, ChannelScale):
        return lambda norm, values, start, size, eps: 0
    if is_kind(norm, ClippedNorm):
        return lambda norm, values, start, size, eps: moments_of(norm.norm, values, start, size, eps)
    return layer if is_kind(norm, LayerNorm) else rms


@always_inline_by_type
def normed(norm, moments, v, k):
    """Return 16 normed numbers of a row, from column `k` on."""

    def rms(norm, moments, v, k):
        return v * moments * load_f32(norm.gain, k)

    def layer(norm, moments, v, k):
        return fma((v - moments[0]) * moments[1], load_f32(norm.gain, k), load_f32(norm.bias, k))

    if is_kind(norm, NoNorm):
        return lambda norm, moments, v, k: v
    if is_kind(norm, ChannelScale):
        return lambda norm, moments, v, k: (v + load_f32(norm.shift, k)) * load_f32(norm.scale, k)
    if is_kind(norm, ClippedNorm):
        return lambda norm, moments, v, k: between(normed(norm.norm, moments, v, k), norm.bounds[0], norm.bounds[1])
    return layer if is_kind(norm, LayerNorm) else rms


@stage
def add_normed(team, T, branch, norm, sizes, hidden):
    """Add to each hidden state what a norm makes of a branch's row; both float32 [>= T, D padded to 16 or more].

    Threads share the tokens, or the columns of a single token.
    """
    vectors = (sizes.hidden_size + LANES - 1) // LANES
    first, last, first_vector, last_vector = share_columns(team, T, vectors)
    for t in range(first, last):
        start, target = t * branch.shape[1], t * hidden.shape[1]
        moments = moments_of(norm, branch, start, sizes.hidden_size, sizes.post_norm_eps)
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            value = normed(norm, moments, load_f32(branch, start + k), k)
            store_f32(hidden, target + k, load_f32(hidden, target + k) + value)


@stage
def add_scaled(team, T, branch, scales, hidden):
    """Add a branch's rows to the hidden states, both scaled; arrays as in `add_normed`; scales : `ResidualScale`."""
    first, last, first_vector, last_vector = share_columns(team, T, hidden.shape[1] // LANES)
    for t in range(first, last):
        start, target = t * branch.shape[1], t * hidden.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            added = normed(scales.branch, 0, load_f32(branch, start + k), k)
            store_f32(hidden, target + k, normed(scales.stream, 0, load_f32(hidden, target + k), k) + added)


@stage
def interpolate(team, T, branch, rates, sizes, hidden):
    """Replace each hidden state x by ``norm(x + rate * (norm(b) - x))``, b a branch's row; arrays as in `add_normed`.

    rates : `Interpolation`.
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        start, target = t * branch.shape[1], t * hidden.shape[1]
        moments = moments_of(rates.norm, branch, start, sizes.hidden_size, sizes.rms_norm_eps)
        for k in range(0, sizes.hidden_size, LANES):
            x = load_f32(hidden, target + k)
            towards = normed(rates.norm, moments, load_f32(branch, start + k), k) - x
            store_f32(hidden, target + k, fma(towards, load_f32(rates.rate, k), x))
        norm_row(rates.norm, sizes, hidden, target)


@stage
def hold_rows(team, T, hidden, held):
    """Copy the hidden states to `held`, both float32 [>= T, D padded]."""
    first, last, first_vector, last_vector = share_columns(team, T, hidden.shape[1] // LANES)
    for t in range(first, last):
        start, target = t * hidden.shape[1], t * held.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            store_f32(held, target + k, load_f32(hidden, start + k))


@stage
def rejoin_rows(team, T, held, norm, sizes, hidden):
    """Add rows that are held to the hidden states, both float32 [>= T, D padded], and norm the sums."""
    first, last = share_of(team, T)
    for t in range(first, last):
        start, target = t * held.shape[1], t * hidden.shape[1]
        for k in range(0, hidden.shape[1], LANES):
            store_f32(hidden, target + k, load_f32(hidden, target + k) + load_f32(held, start + k))
        norm_row(norm, sizes, hidden, target)


@stage
def norm_rows(team, T, norm, sizes, hidden):
    """Norm each hidden state in place; norm : `RmsNorm` or `LayerNorm`."""
    first, last = share_of(team, T)
    for t in range(first, last):
        norm_row(norm, sizes, hidden, t * hidden.shape[1])


@always_inline
def norm_row(norm, sizes, hidden, start):
    """Norm the hidden state that begins at flat element `start`, in place."""
    moments = moments_of(norm, hidden, start, sizes.hidden_size, sizes.rms_norm_eps)
    for k in range(0, hidden.shape[1], LANES):
        store_f32(hidden, start + k, normed(norm, moments, load_f32(hidden, start + k), k))


@stage
def norm_width(team, T, qkv, norm, sizes):
    """RMS-norm queries and keys in place, each over all of its heads.

    qkv : float32 [>= T, >= (H + 2 G) d], q then k then v; norm : WidthNorm.
    """
    queries, keys, eps = norm.queries.shape[0], norm.keys.shape[0], sizes.rms_norm_eps
    first, last = share_of(team, 2 * T)
    for item in range(first, last):
        start = item // 2 * qkv.shape[1]
        if item % 2 == 0:
            norm_run(qkv, start, queries, norm.queries, eps)
        else:
            norm_run(qkv, start + queries, keys, norm.keys, eps)


@stage
def norm_heads(team, T, qkv, norm, sizes):
    """Layer-norm each head of queries and keys in place, with gains of its own.

    qkv : float32 [>= T, >= (H + 2 G) d], q then k then v; norm : HeadsNorm.
    """
    d, H = sizes.head_dim, sizes.num_attention_heads
    heads = H + norm.keys.shape[0] // d
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        head = item % heads
        start = item // heads * qkv.shape[1] + head * d
        mean = mean_of(qkv, start, d)
        scale = inverse_deviation(qkv, start, d, mean, sizes.rms_norm_eps)
        for i in range(d):
            gain = norm.queries[head * d + i] if head < H else norm.keys[(head - H) * d + i]
            store_one(qkv, start + i, (load_one(qkv, start + i) - mean) * scale * gain)


@stage
def scale_queries(team, T, qkv, gains, sizes):
    """Multiply each head of the queries by its scales, or by the gains of queries and of keys.

    Scores have the products of both: the keys of the cache have none, and can be rotated to other positions.
    qkv : float32 [>= T, >= H d], queries first; gains : RotatedGains or QueryScales.
    """
    d, heads = sizes.head_dim, sizes.num_attention_heads
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        start = item // heads * qkv.shape[1] + item % heads * d
        for i in range(d):
            store_one(qkv, start + i, scaled(gains, load_one(qkv, start + i), item % heads * d + i, i))


@always_inline_by_type
def scaled(gains, v, channel, i):
    """Return a number of the queries, scaled; channel : among those of all heads, i : among those of its head."""
    if is_kind(gains, QueryScales):
        return lambda gains, v, channel, i: v * gains.queries[channel]
    return lambda gains, v, channel, i: v * gains.queries[i] * gains.keys[i]


@always_inline
def norm_run(x, start, size, gain, eps):
    """RMS-norm `size` numbers in place, from flat element `start` on."""
    scale = inverse_rms(x, start, size, eps)
    for i in range(size):
        store_one(x, start + i, load_one(x, start + i) * scale * gain[i])


@stage
def clip_columns(team, T, x, w, out):
    """Write rows, brought between the bounds of a `ClippedLinear`'s outputs, into columns of `out`, which may be `x`.

    x : float32 [>= T, >= w.size]; out : float32 [>= T, >= w.first + w.size], columns from ``w.first`` on.
    """
    least, most, whole = w.bounds[2], w.bounds[3], w.size // LANES * LANES
    first, last = share_of(team, T)
    for t in range(first, last):
        start, target = t * x.shape[1], t * out.shape[1] + w.first
        for k in range(0, whole, LANES):
            store_f32(out, target + k, between(load_f32(x, start + k), least, most))
        # What other linears give may stand behind the last ones.
        for k in range(whole, w.size):
            store_one(out, target + k, min(max(load_one(x, start + k), least), most))
