"""Norms where they stand between other stages: before a linear, after a branch, over all heads of queries and keys."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, decode_floats, on_threads
from kernels.test_inputs import NORM_EPS, dims_of, padded_rows, write

from tinychat.engine.arguments import ModelDims
from tinychat.engine.patch_parts import ClippedLinear
from tinychat.kernels.inputs import quantize_normed
from tinychat.kernels.norms import (
    add_normed,
    add_scaled,
    clip_columns,
    hold_rows,
    interpolate,
    norm_heads,
    norm_rows,
    norm_width,
    rejoin_rows,
    scale_queries,
)
from tinychat.kernels.variants import (
    ChannelScale,
    ClippedNorm,
    HeadsNorm,
    Interpolation,
    LayerNorm,
    NoNorm,
    QueryScales,
    ResidualScale,
    RmsNorm,
    RotatedGains,
    WidthNorm,
)

WIDTHS = [(1, 16), (40, 48), (173, 192), (192, 192)]

widths = pytest.mark.parametrize(("size", "K"), WIDTHS)
tokens = pytest.mark.parametrize("T", [1, 2, 17])


def norm_of(kind, rng, size, K):
    """Return a norm, and the formula of what it does to rows [T, size]."""
    gain, bias = (padded_rows(rng.uniform(-2, 2, (1, size)).astype(np.float32), K)[0] for _ in range(2))
    eps = float(NORM_EPS)
    if kind is RmsNorm:
        return RmsNorm(gain), lambda x: reference.rms_norm(x, gain[:size], eps)
    if kind is LayerNorm:
        return LayerNorm(gain, bias), lambda x: reference.layer_norm(x, gain[:size], bias[:size], eps)
    return NoNorm(), lambda x: x


@tokens
@widths
@pytest.mark.parametrize("kind", [RmsNorm, LayerNorm, NoNorm])
def test_rows_between_bounds(kind, size, K, T, rng):
    hidden = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3 + 2, K)
    norm, formula = norm_of(kind, rng, size, K)
    bounds = np.array([-0.5, 1.25, 0, 0], np.float32)
    x = write(quantize_normed, "f32", T, K, 32, hidden, ClippedNorm(norm, bounds), dims_of(size))
    expected = np.zeros((T, K))
    expected[:, :size] = formula(hidden[:, :size]).clip(-0.5, 1.25)
    assert_within(decode_floats(x, T, K), expected, 64 * EPS * (1 + np.abs(expected)))
    plain = write(quantize_normed, "f32", T, K, 32, hidden, norm, dims_of(size))
    clipped = decode_floats(plain, T, K).clip(-0.5, 1.25)
    assert np.array_equal(decode_floats(x, T, K)[:, :size], clipped[:, :size])


@pytest.mark.parametrize(("first", "size"), [(0, 1), (5, 40), (16, 173), (21, 192)])
@tokens
def test_outputs_between_bounds_stand_behind_others(first, size, T, rng):
    x, before = (rng.standard_normal((T + 1, width)).astype(np.float32) for width in (size + 7, first + size + 16))
    w = ClippedLinear((), np.array([-9, 9, -0.5, 0.75], np.float32), np.int64(first), np.int64(size))
    for threads in (1, 3):
        out = before.copy()
        on_threads(clip_columns, threads, T, x, w, out)
        expected = before.copy()
        expected[:T, first : first + size] = x[:T, :size].clip(-0.5, 0.75)
        assert np.array_equal(out, expected)
    in_place = w._replace(first=np.int64(0))
    expected = np.concatenate([x[:T, :size].clip(-0.5, 0.75), x[:T, size:]], axis=1)
    on_threads(clip_columns, 2, T, x, in_place, x)
    assert np.array_equal(x[:T], expected)


@tokens
@widths
@pytest.mark.parametrize("kind", [LayerNorm, NoNorm])
def test_rows_before_a_linear(kind, size, K, T, rng):
    hidden = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3 + 2, K)
    norm, formula = norm_of(kind, rng, size, K)
    x = write(quantize_normed, "f32", T, K, 32, hidden, norm, dims_of(size))
    expected = np.zeros((T, K))
    expected[:, :size] = formula(hidden[:, :size])
    assert_within(decode_floats(x, T, K), expected, (size / 32 + 8) * EPS * (np.abs(expected) + 8))


@tokens
@widths
@pytest.mark.parametrize("kind", [RmsNorm, LayerNorm])
def test_branches_are_added(kind, size, K, T, rng):
    dims = dims_of(size)._replace(rms_norm_eps=np.float32(0.5), post_norm_eps=NORM_EPS)
    branch = padded_rows(rng.standard_normal((T, size)).astype(np.float32) * 3 - 1, K)
    hidden = padded_rows(rng.standard_normal((T, size)).astype(np.float32), K)
    norm, formula = norm_of(kind, rng, size, K)
    results = []
    for threads in (1, 2, 5):
        out = np.concatenate([hidden, np.full((1, K), UNTOUCHED)])
        on_threads(add_normed, threads, T, branch, norm, dims, out)
        assert (out[T] == UNTOUCHED).all()
        results.append(out[:T].tobytes())
    assert len(set(results)) == 1
    expected = np.zeros((T, K))
    expected[:, :size] = hidden[:, :size] + formula(branch[:, :size])
    assert_within(out[:T], expected, (size / 32 + 8) * EPS * (np.abs(expected) + 8))


@tokens
@widths
def test_rows_are_drawn_towards_branches(size, K, T, rng):
    branch, hidden = (padded_rows(rng.standard_normal((T, size)).astype(np.float32), K) for _ in range(2))
    norm, formula = norm_of(RmsNorm, rng, size, K)
    rate = padded_rows(rng.uniform(0, 1, (1, size)).astype(np.float32), K)[0]
    results = []
    for threads in (1, 2, 5):
        out = np.concatenate([hidden, np.full((1, K), UNTOUCHED)])
        on_threads(interpolate, threads, T, branch, Interpolation(norm, rate), dims_of(size), out)
        assert (out[T] == UNTOUCHED).all() and not out[:T, size:].any()
        results.append(out[:T].tobytes())
    assert len(set(results)) == 1
    x, b = hidden[:, :size].astype(np.float64), formula(branch[:, :size])
    expected = formula(x + rate[:size] * (b - x))
    assert_within(out[:T, :size], expected, (size / 16 + 32) * EPS * (np.abs(expected) + 8))


@tokens
@widths
def test_rows_are_held_and_join_others(size, K, T, rng):
    rows, hidden = (padded_rows(rng.standard_normal((T, size)).astype(np.float32), K) for _ in range(2))
    norm, formula = norm_of(RmsNorm, rng, size, K)
    results = []
    for threads in (1, 2, 5):
        held, out = np.full((T + 1, K + 16), UNTOUCHED), hidden.copy()
        on_threads(hold_rows, threads, T, rows, held)
        assert (held[:T, :K] == rows).all() and (held[:T, K:] == UNTOUCHED).all() and (held[T] == UNTOUCHED).all()
        on_threads(rejoin_rows, threads, T, held, norm, dims_of(size), out)
        results.append(out.tobytes())
    assert len(set(results)) == 1
    expected = formula((hidden[:, :size] + rows[:, :size]).astype(np.float64))
    assert_within(out[:, :size], expected, (size / 32 + 8) * EPS * (np.abs(expected) + 8))


@tokens
@widths
def test_branches_and_rows_are_scaled(size, K, T, rng):
    branch, hidden = (padded_rows(rng.standard_normal((T, size)).astype(np.float32), K) for _ in range(2))
    scales = [ChannelScale(*padded_rows(rng.standard_normal((2, size)).astype(np.float32), K)) for _ in range(2)]

    def scaled(x, by):
        return (x.astype(np.float64) + by.shift) * by.scale

    results = []
    for threads in (1, 2, 5):
        out = np.concatenate([hidden, np.full((1, K), UNTOUCHED)])
        on_threads(add_scaled, threads, T, branch, ResidualScale(*scales), out)
        assert (out[T] == UNTOUCHED).all()
        results.append(out[:T].tobytes())
    assert len(set(results)) == 1
    expected = scaled(branch, scales[0]) + scaled(hidden, scales[1])
    assert_within(out[:T], expected, 16 * EPS * (1 + np.abs(expected)))
    expected = scaled(hidden, scales[0])
    on_threads(norm_rows, 2, T, scales[0], dims_of(size), hidden)
    assert_within(hidden, expected, 4 * EPS * (1 + np.abs(expected)))


@tokens
@pytest.mark.parametrize(("H", "G", "d"), [(4, 2, 24), (3, 3, 10), (4, 1, 40)])
def test_all_heads_of_queries_and_keys_together(H, G, d, T, rng):
    qkv = rng.standard_normal((T, (H + 2 * G) * d + 16)).astype(np.float32)
    gains = rng.uniform(0.5, 1.5, (H + G) * d).astype(np.float32)
    q, k = gains[: H * d], gains[H * d :]
    results = []
    for threads in (1, 2, 5):
        out = qkv.copy()
        on_threads(norm_width, threads, T, out, WidthNorm(q, k), ModelDims(0, H, d, 0, 0, NORM_EPS))
        results.append(out.tobytes())
    assert len(set(results)) == 1
    queries, keys, others = np.split(qkv, [H * d, (H + G) * d], axis=1)
    parts = [reference.rms_norm(queries, q, float(NORM_EPS)), reference.rms_norm(keys, k, float(NORM_EPS)), others]
    expected = np.concatenate(parts, axis=1)
    assert_within(out, expected, (H * d / 32 + 8) * EPS * np.abs(expected))


@tokens
@pytest.mark.parametrize(("H", "G", "d"), [(4, 2, 24), (3, 3, 10), (4, 1, 40)])
def test_each_head_of_queries_and_keys_with_gains_of_its_own(H, G, d, T, rng):
    qkv = rng.standard_normal((T, (H + 2 * G) * d + 16)).astype(np.float32) + 1
    gains = rng.uniform(0.5, 1.5, (H + G) * d).astype(np.float32)
    results = []
    for threads in (1, 2, 5):
        out = qkv.copy()
        norm = HeadsNorm(gains[: H * d], gains[H * d :])
        on_threads(norm_heads, threads, T, out, norm, ModelDims(0, H, d, 0, 0, NORM_EPS))
        results.append(out.tobytes())
    assert len(set(results)) == 1
    heads, others = np.split(qkv, [(H + G) * d], axis=1)
    normed = reference.layer_norm(heads.reshape(T, H + G, d), gains.reshape(H + G, d), 0, float(NORM_EPS))
    expected = np.concatenate([normed.reshape(T, -1), others], axis=1)
    assert_within(out, expected, (d / 32 + 8) * EPS * (np.abs(expected) + 4))


@tokens
@pytest.mark.parametrize(("H", "d"), [(4, 24), (3, 10), (2, 40)])
def test_gains_of_queries_and_keys_behind_the_rotation(H, d, T, rng):
    qkv = rng.standard_normal((T, (H + 2) * d + 16)).astype(np.float32)
    q, k = rng.uniform(0.5, 1.5, (2, d)).astype(np.float32)
    results = []
    for threads in (1, 2, 5):
        out = qkv.copy()
        on_threads(scale_queries, threads, T, out, RotatedGains(q, k), ModelDims(0, H, d, 0, 0, NORM_EPS))
        results.append(out.tobytes())
    assert len(set(results)) == 1
    expected = qkv.astype(np.float64)
    expected[:, : H * d] *= np.tile(q.astype(np.float64) * k, H)
    assert_within(out, expected, 2 * EPS * np.abs(expected))


@tokens
@pytest.mark.parametrize(("H", "d"), [(4, 24), (3, 10), (2, 40)])
def test_scales_of_queries_behind_the_rotation(H, d, T, rng):
    qkv = rng.standard_normal((T, (H + 2) * d + 16)).astype(np.float32)
    scales = rng.uniform(0.5, 1.5, H * d).astype(np.float32)
    for threads in (1, 2, 5):
        out = qkv.copy()
        on_threads(scale_queries, threads, T, out, QueryScales(scales), ModelDims(0, H, d, 0, 0, NORM_EPS))
        assert (out[:, H * d :] == qkv[:, H * d :]).all()
        assert (out[:, : H * d] == qkv[:, : H * d] * scales).all()
