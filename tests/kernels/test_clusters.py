"""The logits of clusters: those of their ids, and 1 below the least for all others."""

import numpy as np
import pytest
from kernels import test_experts
from kernels.kernel_inputs import on_threads

from tinychat.kernels.clusters import scatter_logits, spread_logits


@pytest.mark.parametrize(("T", "used", "count", "size"), [(1, 1, 1, 5), (1, 3, 11, 7), (6, 4, 5, 19)])
def test_logits_of_chosen_clusters(T, used, count, size, rng):
    V, order = count * size, rng.permutation(count * size)
    e = test_experts.scratch_for(T, used, count)
    e.chosen[:] = [rng.permutation(count)[:used] for _ in range(T)]
    e.slots[:] = rng.permutation(len(e.gate_up))[: T * used].reshape(T, used)
    values = rng.standard_normal((T, used, size)).astype(np.float32)
    expected = np.tile(values.min(axis=(1, 2))[:, None] - np.float32(1), (1, V))
    for t in range(T):
        for j in range(used):
            e.gate_up[e.slots[t, j], :size] = values[t, j]
            first = e.chosen[t, j] * size
            expected[t, order[first : first + size]] = values[t, j]
    for threads in (1, 3):
        logits = np.full((T + 1, -(-V // 16) * 16), np.nan, np.float32)
        on_threads(scatter_logits, threads, T, order.astype(np.float32), e, logits)
        assert np.array_equal(logits[:T, :V], expected)
        assert np.isnan(logits[T]).all()


@pytest.mark.parametrize(("T", "count", "V"), [(1, 5, 5), (1, 7, 40), (6, 19, 83)])
def test_logits_of_frequent_tokens(T, count, V, rng):
    ids, some = rng.permutation(V)[:count], rng.standard_normal((T, count + 3)).astype(np.float32)
    expected = np.tile(some[:, :count].min(axis=1)[:, None] - np.float32(1), (1, V))
    expected[:, ids] = some[:, :count]
    for threads in (1, 3):
        logits = np.full((T + 1, -(-V // 16) * 16), np.nan, np.float32)
        on_threads(spread_logits, threads, T, ids.astype(np.float32), some, logits)
        assert np.array_equal(logits[:T, :V], expected)
        assert np.isnan(logits[T]).all()
