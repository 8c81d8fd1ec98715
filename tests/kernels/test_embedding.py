import numpy as np
import pytest
from kernels.kernel_inputs import METHODS, UNTOUCHED, on_threads, random_weight

from tinychat.kernels.embedding import embed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("K", "group_size"), [(64, 32), (192, 64), (128, 128)])
def test_rows_are_the_weights_meaning(method, T, threads, K, group_size, rng):
    weight, w = random_weight(rng, method, 48, K, group_size)
    ids = rng.integers(0, 48, T)
    hidden = np.full((T + 1, K + 16), UNTOUCHED)
    on_threads(embed, threads, weight, ids, hidden, np.zeros((threads, K), np.float32))
    # A code of at most 8 bits times a scale of 11 is exact in float32.
    np.testing.assert_array_equal(hidden[:T, :K], w[ids])
    assert (hidden[T:] == UNTOUCHED).all()
    assert (hidden[:, K:] == UNTOUCHED).all()
