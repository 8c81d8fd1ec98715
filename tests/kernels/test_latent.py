"""Latent attention around its kernel: latents, and the linears of heads."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import (
    EPS,
    METHODS,
    assert_within,
    empty_activations,
    on_threads,
    random_weight,
    round_up,
    scratch_of,
)

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.buffers import LatentScratch
from tinychat.kernels.latent import linear_heads, norm_latents, quantize_heads, split_queries

H, RANK, PLAIN, ROTATED, VALUE, OF_QUERIES = 3, 48, 20, 12, 16, 24
D = RANK + ROTATED
SIZES = ModelDims(0, H, D, 0, 0, np.float32(1), kv_lora_rank=RANK, qk_nope_head_dim=PLAIN, v_head_dim=VALUE)
UNTOUCHED = np.float32(-7)
NONE = np.zeros(0, np.float32)


class Scratch(NamedTuple):
    """The scratch that the stages read."""

    latents: LatentScratch
    rows: np.ndarray
    tiles: np.ndarray


def scratch_for(method, T, threads):
    """Return scratch full of rubbish: the activations of all heads, one after another."""
    K = round_up(RANK, 32)
    parts = empty_activations(method, T, K)
    x = type(parts)(*(np.concatenate([part] * H) for part in parts))
    empty = np.zeros((0, 0), np.float32)
    _, rows, tiles = scratch_of(x, threads, K)
    rows[:] = np.nan
    return Scratch(LatentScratch(x, empty, empty, empty, empty), rows, tiles)


def heads_of(method, rng, N, K):
    """Return the weights of all heads, and what they mean [H, N, K]."""
    found = [random_weight(rng, method, N, round_up(K, 32)) for _ in range(H)]
    stacked: Any = type(found[0][0])(*(np.stack(parts) for parts in zip(*(weight for weight, _ in found))))
    return stacked, np.stack([meaning[:, :K] for _, meaning in found])


def queries_of(method, T, threads=1):
    """Return queries and weights, and the queries of attention that the stages make of them [T, H d]."""
    rng = np.random.default_rng(T)
    weight, matrices = heads_of(method, rng, RANK, PLAIN)
    queries = rng.standard_normal((T, H * (PLAIN + ROTATED))).astype(np.float32)
    qkv, s = np.full((T, H * D + 5), UNTOUCHED), scratch_for(method, T, threads)
    on_threads(split_queries, threads, T, queries, SIZES, weight, s, qkv)
    on_threads(linear_heads, threads, T, weight, s, qkv, SIZES.num_attention_heads, D)
    assert (qkv[:, H * D :] == UNTOUCHED).all()
    return queries, matrices, qkv[:, : H * D]


def values_of(method, T, threads=1):
    """Return latents and weights, and what the stages make of them [T, H VALUE]."""
    rng = np.random.default_rng(T)
    weight, matrices = heads_of(method, rng, VALUE, RANK)
    attended = rng.standard_normal((T, H * RANK + 9)).astype(np.float32)
    out, s = np.full((T, H * VALUE + 16), UNTOUCHED), scratch_for(method, T, threads)
    on_threads(quantize_heads, threads, T, attended, SIZES.num_attention_heads, SIZES.kv_lora_rank, weight, s)
    on_threads(linear_heads, threads, T, weight, s, out, SIZES.num_attention_heads, VALUE)
    assert (out[:, H * VALUE :] == UNTOUCHED).all()
    return attended, matrices, out[:, : H * VALUE]


def assert_linear(method, x, matrix, out):
    """Compare with the formula; of quantized linears, what their input is rounded to."""
    if method != "f32":
        codes, scales = reference.quantize_activations(x, 32)
        x = codes * np.repeat(scales, 32, axis=1)[:, : x.shape[1]]
    expected = reference.linear(x, matrix)
    assert_within(out, expected, 64 * EPS * np.abs(x) @ np.abs(matrix).T + 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("T", "threads"), [(1, 1), (1, 3), (6, 2), (19, 2)])
def test_queries(method, T, threads):
    queries, matrices, got = queries_of(method, T, threads)
    queries, got = queries.reshape(T, H, -1), got.reshape(T, H, D)
    np.testing.assert_array_equal(got[..., :ROTATED], queries[..., PLAIN:])
    for h in range(H):
        assert_linear(method, queries[:, h, :PLAIN], matrices[h], got[:, h, ROTATED:])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("T", "threads"), [(1, 1), (1, 3), (6, 2), (19, 2)])
def test_values(method, T, threads):
    attended, matrices, got = values_of(method, T, threads)
    for h in range(H):
        assert_linear(method, attended[:, h * RANK : (h + 1) * RANK], matrices[h], got.reshape(T, H, VALUE)[:, h])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("of_queries", [OF_QUERIES, 0])
def test_latents(of_queries, threads, rng):
    T, of_plain = 7, H * (PLAIN + ROTATED)
    down = rng.standard_normal((T, (of_queries or of_plain) + D + 3)).astype(np.float32)
    q_gain, kv_gain = rng.uniform(-2, 2, of_queries).astype(np.float32), rng.uniform(-2, 2, RANK).astype(np.float32)
    low, qkv = np.full((T, 32), UNTOUCHED), np.full((T, (H + 1) * D + RANK + 4), UNTOUCHED)
    on_threads(norm_latents, threads, T, down, q_gain if of_queries else NONE, kv_gain, SIZES, low, qkv)
    _, latent, rotated, _ = np.split(down, np.cumsum([of_queries or of_plain, RANK, ROTATED]), axis=1)
    normed = reference.rms_norm(latent, kv_gain, 1e-6)
    np.testing.assert_array_equal(qkv[:, H * D : H * D + ROTATED], rotated)
    assert_within(qkv[:, H * D + ROTATED : (H + 1) * D], normed, 32 * EPS * np.abs(normed))
    np.testing.assert_array_equal(qkv[:, (H + 1) * D : -4], qkv[:, H * D + ROTATED : (H + 1) * D])
    if of_queries:
        expected = reference.rms_norm(down[:, :of_queries], q_gain, 1e-6)
        assert_within(low[:, :of_queries], expected, 32 * EPS * np.abs(expected))
    assert (low[:, of_queries:] == UNTOUCHED).all() and (qkv[:, : H * D] == UNTOUCHED).all()
