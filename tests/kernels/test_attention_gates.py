"""Gates of attention against the formula, on any threads."""

import numpy as np
import pytest
from kernels.kernel_inputs import EPS, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.attention_gates import gate_attended, gate_heads, take_gates

HEADS = 3
threads = pytest.mark.parametrize("threads", [1, 3])


def dims(head_dim):
    return ModelDims(0, HEADS, head_dim, 0, 0, np.float32(1e-6))


def sigmoid(v):
    return 1 / (1 + np.exp(-v.astype(np.float64)))


@threads
def test_gates_of_channels(threads, rng):
    T, columns = 5, HEADS * 32
    qkv = rng.standard_normal((T, 2 * columns + 80)).astype(np.float32)
    queries, gates, others = np.split(qkv, [columns, 2 * columns], axis=1)
    attended = rng.standard_normal((T, columns + 16)).astype(np.float32)
    work, taken, found = qkv.copy(), np.zeros((T, columns + 16), np.float32), attended.copy()
    on_threads(take_gates, threads, T, work, dims(32), taken)
    np.testing.assert_array_equal(work[:, : columns + 80], np.concatenate([queries, others], axis=1))
    np.testing.assert_array_equal(taken[:, :columns], gates)
    on_threads(gate_attended, threads, T, taken, dims(32), found)
    expected = attended[:, :columns] * sigmoid(gates)
    assert_within(found[:, :columns], expected, 4 * EPS * np.abs(expected))
    np.testing.assert_array_equal(found[:, columns:], attended[:, columns:])


@threads
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("head_dim", [24, 64])
@pytest.mark.parametrize("with_softplus", [False, True])
def test_gates_of_heads(threads, T, head_dim, with_softplus, rng):
    columns = HEADS * head_dim
    gates = (5 * rng.standard_normal((T, HEADS + 13))).astype(np.float32)
    gates[0, :2] = -200, 200
    attended = rng.standard_normal((T, columns + 16)).astype(np.float32)
    found = attended.copy()
    on_threads(gate_heads, threads, T, gates, np.bool_(with_softplus), dims(head_dim), head_dim, found)
    of_heads = np.repeat(gates[:, :HEADS], head_dim, axis=1)
    factors = np.logaddexp(0, of_heads.astype(np.float64)) if with_softplus else sigmoid(of_heads)
    expected = attended[:, :columns] * factors
    # exp(x) is off by |x| EPS of its size, as x is rounded.
    assert_within(found[:, :columns], expected, (4 + np.abs(of_heads)) * EPS * np.abs(expected) + 1e-37)
    np.testing.assert_array_equal(found[:, columns:], attended[:, columns:])
