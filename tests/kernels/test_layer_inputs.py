"""What a layer gets of a token beside the residual stream, its factor, and the values and queries of its attention."""

import numpy as np
import pytest
import reference
from kernels.cache_inputs import empty_cache
from kernels.kernel_inputs import EPS, METHODS, UNTOUCHED, assert_within, on_threads, random_weight
from kernels.test_rope_append import NORM_EPS, Angles, angles_of, rotation_error, table

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.layer_inputs import scale_rows, take_inputs
from tinychat.kernels.rope import norm_values, rotate_queries
from tinychat.kernels.variants import NoTable

VOCAB, LAYERS = 8, 6


def run_inputs(method, size, T, threads, rng):
    """Return the gates' neighbours that the kernel wrote [T, size], and what they are by the formula.

    method : of the table; None: there is none.
    """
    columns = -(-size // 32) * 32
    weight, w = random_weight(rng, method, VOCAB * LAYERS, columns) if method else (NoTable(), None)
    # The last id has no row.
    ids, gain = rng.integers(0, VOCAB + 1, T), rng.uniform(0.5, 1.5, size).astype(np.float32)
    projected = rng.standard_normal((T, LAYERS * size + 16)).astype(np.float32)
    gate_up = np.full((T + 1, size + columns + 16), UNTOUCHED)
    sizes = ModelDims(LAYERS, 0, 0, 0, 0, NORM_EPS, layer_input_size=size, layer_input_ids=VOCAB)
    on_threads(take_inputs, threads, T, weight, ids, projected, gain, 4, sizes, gate_up)
    assert (gate_up[:T, :size] == UNTOUCHED).all() and (gate_up[T:] == UNTOUCHED).all()
    normed = reference.rms_norm(projected[:, 4 * size : 5 * size], gain, float(NORM_EPS))
    row = 0 * normed if w is None else w[ids % VOCAB * LAYERS + 4][:, :size]
    return gate_up[:T, size : 2 * size], normed, row


@pytest.mark.parametrize("method", [*METHODS, None])
@pytest.mark.parametrize(("size", "T"), [(24, 1), (32, 7), (256, 3)])
def test_a_row_of_the_table_and_a_part_of_the_projection_are_added(method, size, T, rng):
    got, normed, row = run_inputs(method, size, T, 1, rng)
    assert_within(got, normed + row, (size / 16 + 8) * EPS * (np.abs(normed) + np.abs(row)))


def test_threads_write_the_same_bits():
    one, two = (run_inputs("int4", 40, 9, threads, np.random.default_rng(3))[0] for threads in (1, 2))
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_scaled(threads, rng):
    hidden = rng.standard_normal((6, 48)).astype(np.float32)
    expected = np.concatenate([hidden[:5] * np.float32(0.3), hidden[5:]])
    on_threads(scale_rows, threads, 5, np.full(1, 0.3, np.float32), hidden)
    np.testing.assert_array_equal(hidden, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("H", "G", "d"), [(4, 2, 24), (8, 1, 80)])
def test_values_are_normed_without_gains(threads, H, G, d, rng):
    T = 5
    qkv = rng.standard_normal((T, (H + 2 * G) * d)).astype(np.float32)
    found = qkv.copy()
    on_threads(
        norm_values, threads, T, found, ModelDims(0, H, 0, 0, 0, NORM_EPS), empty_cache("bf16", G, 64, d).layer()
    )
    first = (H + G) * d
    np.testing.assert_array_equal(found[:, :first], qkv[:, :first])
    expected = reference.rms_norm(qkv[:, first:].reshape(T, G, d), 1.0, float(NORM_EPS)).reshape(T, -1)
    assert_within(found[:, first:], expected, (d / 16 + 8) * EPS * np.abs(expected))


@pytest.mark.parametrize("threads", [1, 2])
def test_queries_alone_are_normed_and_rotated(threads, rng):
    H, G, d, T, start = 4, 2, 24, 5, 20
    qkv, gain = rng.standard_normal((T, H * d + 16)).astype(np.float32), rng.uniform(0.5, 1.5, d).astype(np.float32)
    angles = angles_of(start, T, d)
    none = np.zeros(0, np.int64)
    job = Angles(none, none, none, table(angles)[None], np.full(T, 0.7, np.float32))
    found, sizes = qkv.copy(), ModelDims(0, H, 0, 0, 0, NORM_EPS)
    cache = empty_cache("f32", G, 64, d)
    on_threads(rotate_queries, threads, T, job, found, gain, 0, d, sizes, cache.layer())
    normed = reference.rms_norm(qkv[:, : H * d].reshape(T, H, d), gain, float(NORM_EPS))
    expected = reference.rope(normed, angles) * np.float32(0.7)
    assert_within(found[:, : H * d].reshape(T, H, d), expected, rotation_error(normed, d / 32 + 12))
    np.testing.assert_array_equal(found[:, H * d :], qkv[:, H * d :])
