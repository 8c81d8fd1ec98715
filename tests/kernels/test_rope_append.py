"""Rotary embedding and the append to the cache, at positions where the two conventions of pairing differ."""

from typing import NamedTuple

import numpy as np
import pytest
import reference
from kernels.cache_inputs import KVS, empty_cache, kvs, read_cache, read_values, storage_error, stored
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.rope import rope_append
from tinychat.kernels.sizes import PER_LANE

NORM_EPS = np.float32(1e-6)
LOG2_E = np.log2(np.e)
NO_GAIN = np.zeros(0, np.float32)
HEADS = [(4, 4, 8), (4, 2, 24), (9, 3, 64), (8, 1, 80), (2, 1, 128), (2, 2, 6)]
ROTARY_DIMS = [(24, 12), (64, 16), (64, 0), (96, 72), (128, 32), (6, 2)]

heads = pytest.mark.parametrize(("H", "G", "d"), HEADS)


class Angles(NamedTuple):
    """The fields of a batch that the kernel reads."""

    sequences: np.ndarray
    positions: np.ndarray
    tables: np.ndarray
    cos_sin: np.ndarray
    query_factors: np.ndarray


def angles_of(start, T, d):
    return np.arange(start, start + T)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)


def table(angles):
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def run(kv, qkv, H, G, d, start, q_gain=NO_GAIN, k_gain=NO_GAIN, threads=1, rotary_dim=None):
    """Run the kernel; return queries [T, H, d] and the cache it appended to."""
    T = len(qkv)
    work = np.concatenate([qkv, np.full((T, 16), UNTOUCHED)], axis=1)
    cache = empty_cache(kv, G, start + T + 40, d)
    rotary_dim = d if rotary_dim is None else rotary_dim
    # The second set of angles is that of this layer.
    turned = table(angles_of(start, T, rotary_dim))
    angles = np.stack([np.full_like(turned, np.nan), turned])
    factors = np.full(T, LOG2_E / np.sqrt(d), np.float32)
    job = Angles(np.zeros(T, np.int64), np.arange(start, start + T), cache.table[None], angles, factors)
    sizes = ModelDims(0, H, d, 0, 0, NORM_EPS)
    on_threads(rope_append, threads, T, job, work, q_gain, k_gain, 1, rotary_dim, sizes, cache.layer())
    np.testing.assert_array_equal(work[:, (H + G) * d : -16], qkv[:, (H + G) * d :])
    assert (work[:, -16:] == UNTOUCHED).all()
    return work[:, : H * d].reshape(T, H, d), cache


def split(qkv, H, G, d):
    """Return q [T, H, d], k and v [T, G, d]."""
    T = len(qkv)
    q, k, v = np.split(qkv, [H * d, (H + G) * d], axis=1)
    return q.reshape(T, H, d), k.reshape(T, G, d), v.reshape(T, G, d)


def rotation_error(x, steps):
    """Return the rounding error of rotated ``x [T, heads, d]``: both halves of a pair bear on both results."""
    pairs = np.abs(x[..., : x.shape[-1] // 2]) + np.abs(x[..., x.shape[-1] // 2 :])
    return steps * EPS * np.concatenate([pairs, pairs], axis=-1)


@pytest.mark.parametrize(
    ("kv", "H", "G", "d"), [(kv, *shape) for kv in KVS for shape in HEADS if shape[-1] % PER_LANE.get(kv, 1) == 0]
)
@pytest.mark.parametrize(("start", "T"), [(0, 1), (8, 1), (9, 17), (61, 7), (510, 3)])
def test_rotates_and_appends(kv, H, G, d, start, T, rng):
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    queries, cache = run(kv, qkv, H, G, d, start)
    q, k, v = split(qkv, H, G, d)
    angles = angles_of(start, T, d)
    factor = np.log2(np.e) / np.sqrt(d)
    assert_within(queries, reference.rope(q, angles) * factor, rotation_error(q, 4) * factor)
    got_k, got_v = read_cache(kv, cache, start + T, d)
    expected_k = reference.rope(k, angles)
    assert_within(got_k[start:], expected_k, rotation_error(k, 4) + storage_error(expected_k, kv) * 1.01)
    np.testing.assert_array_equal(got_v[start:], stored(v, kv))


@pytest.mark.parametrize(("d", "rotary_dim"), ROTARY_DIMS)
@pytest.mark.parametrize(("start", "T"), [(9, 1), (61, 7)])
def test_rotates_a_part_of_each_head(d, rotary_dim, start, T, rng):
    H, G = 4, 2
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    queries, cache = run("f32", qkv, H, G, d, start, rotary_dim=rotary_dim)
    q, k, _ = split(qkv, H, G, d)
    angles, factor = angles_of(start, T, rotary_dim), np.float32(np.log2(np.e) / np.sqrt(d))
    keys = read_cache("f32", cache, start + T, d)[0][start:]
    np.testing.assert_array_equal(queries[..., rotary_dim:], q[..., rotary_dim:] * factor)
    np.testing.assert_array_equal(keys[..., rotary_dim:], k[..., rotary_dim:])
    turned = slice(rotary_dim)
    if rotary_dim:
        assert_within(queries[..., turned], reference.rope(q, angles)[..., turned] * factor, 16 * EPS * np.abs(q).max())
        assert_within(keys[..., turned], reference.rope(k, angles)[..., turned], 16 * EPS * np.abs(k).max())


@kvs
@pytest.mark.parametrize(("start", "T"), [(13, 6), (12, 6), (13, 5), (8, 1), (9, 1)])
def test_writes_its_own_positions_only(kv, start, T, rng):
    H, G, d = 4, 2, 24
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    _, cache = run(kv, qkv, H, G, d, start)
    context = cache.context
    k, v = read_cache(kv, cache, context, d)
    written = np.zeros(context, bool)
    written[start : start + T] = True
    assert (np.isfinite(k).all(axis=(1, 2)) == written).all()
    if kv == "bf16" and (start + T) % 2:
        assert not v[start + T].any(), "the other half of the last pair is zero: attention reads it"
        written[start + T] = True
    assert (np.isfinite(v).all(axis=(1, 2)) == written).all()
    assert np.isnan(v[~written]).all()
    padding = read_values(kv, cache)[:, written, d:]
    assert padding.size
    assert not padding.any(), "values are zero beyond d"


@heads
def test_norms_queries_and_keys(H, G, d, rng):
    T, start = 5, 20
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    q_gain, k_gain = rng.uniform(0.5, 1.5, (2, d)).astype(np.float32)
    queries, cache = run("f32", qkv, H, G, d, start, q_gain, k_gain)
    q, k, v = split(qkv, H, G, d)
    angles = angles_of(start, T, d)
    factor = np.log2(np.e) / np.sqrt(d)
    normed_q = reference.rms_norm(q, q_gain, float(NORM_EPS))
    normed_k = reference.rms_norm(k, k_gain, float(NORM_EPS))
    steps = d / 32 + 12
    assert_within(queries, reference.rope(normed_q, angles) * factor, rotation_error(normed_q, steps) * factor)
    got_k, got_v = read_cache("f32", cache, start + T, d)
    assert_within(got_k[start:], reference.rope(normed_k, angles), rotation_error(normed_k, steps))
    np.testing.assert_array_equal(got_v[start:], v)


@kvs
@pytest.mark.parametrize("T", [1, 17])
def test_threads_and_chunks_write_the_same_bits(kv, T, rng):
    H, G, d, start = 6, 2, 40, 30
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    gain = rng.uniform(0.5, 1.5, d).astype(np.float32)
    queries, cache = run(kv, qkv, H, G, d, start, gain, gain)
    for threads in (2, 5):
        again, others = run(kv, qkv, H, G, d, start, gain, gain, threads)
        assert again.tobytes() == queries.tobytes()
        assert [buffer.tobytes() for buffer in others.buffers] == [buffer.tobytes() for buffer in cache.buffers]
    alone, last = run(kv, qkv[-1:], H, G, d, start + T - 1, gain, gain)
    assert alone[0].tobytes() == queries[-1].tobytes()
    for a, b in zip(read_cache(kv, last, start + T, d), read_cache(kv, cache, start + T, d)):
        assert a[-1].tobytes() == b[-1].tobytes()


def test_nan_is_stored_as_nan(rng):
    qkv = rng.standard_normal((1, 4 * 8)).astype(np.float32)
    qkv[0, 8 * 2 + 3] = np.nan
    qkv[0, 8 * 3 + 5] = np.nan
    _, cache = run("int8", qkv, 2, 1, 8, 9)
    k, v = read_cache("int8", cache, 10, 8)
    assert np.isnan(k[9]).all()
    assert np.isnan(v[9]).all()


def test_zeros_have_a_code(rng):
    _, cache = run("int8", np.zeros((3, 4 * 8), np.float32), 2, 1, 8, 9)
    k, v = read_cache("int8", cache, 12, 8)
    assert not k[9:].any()
    assert not v[9:].any()


def test_float16_overflow_is_clamped(rng):
    qkv = np.array(
        [[0] * 16 + [7e4, 1, -7e4, 1, 3, 3, 3, 3] + [1e30, -1e30, np.inf, -np.inf, 65504, 1, 2, 3]], np.float32
    )
    _, cache = run("f16", qkv, 2, 1, 8, 0)
    k, v = read_cache("f16", cache, 1, 8)
    np.testing.assert_array_equal(k[0, 0], [65504, 1, -65504, 1, 3, 3, 3, 3])
    np.testing.assert_array_equal(v[0, 0], [65504, -65504, 65504, -65504, 65504, 1, 2, 3])
