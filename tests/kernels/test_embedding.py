import numpy as np
import pytest
from kernels.kernel_inputs import METHODS, UNTOUCHED, on_threads, random_weight

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.embedding import add_image_rows, embed, place_rows
from tinychat.kernels.weights import SplitWeight

SIZES = ModelDims(0, 0, 0, 0, 0, np.float32(0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("K", "group_size"), [(64, 32), (192, 64), (128, 128)])
def test_rows_are_dequantized_weights(method, T, threads, K, group_size, rng):
    weight, w = random_weight(rng, method, 48, K, group_size)
    ids = rng.integers(0, 48, T)
    hidden = np.full((T + 1, K + 16), UNTOUCHED)
    on_threads(embed, threads, T, weight, ids, SIZES, hidden)
    # A code of at most 8 bits times a scale of as many is exact, that times a row's scale rounded once.
    np.testing.assert_array_equal(hidden[:T, :K], w[ids].astype(np.float32))
    assert (hidden[T:] == UNTOUCHED).all()
    assert (hidden[:, K:] == UNTOUCHED).all()


def test_split_weight_equals_both_parts(rng):
    (frequent, w), (rest, v) = (random_weight(rng, method, N, 96) for method, N in [("int8", 32), ("int4", 48)])
    ids = rng.permutation(80)
    hidden = np.full((80, 96), UNTOUCHED)
    on_threads(embed, 1, 80, SplitWeight(frequent, rest), ids, SIZES, hidden)
    np.testing.assert_array_equal(hidden, np.concatenate([w, v])[ids].astype(np.float32))


@pytest.mark.parametrize(("T", "threads"), [(1, 1), (7, 2), (40, 2)])
def test_rows_of_images_replace_some_and_are_added_to_some(T, threads, rng):
    K, parts = 48, 3
    images, hidden = (rng.standard_normal((T + 2, columns)).astype(np.float32) for columns in (parts * K, K))
    replaced = rng.integers(0, 2, T)
    replaced[T // 2] = 1
    expected, where = hidden.copy(), np.flatnonzero(replaced)
    on_threads(place_rows, threads, T, replaced, images, hidden)
    expected[where] = images[where, :K]
    np.testing.assert_array_equal(hidden, expected)
    on_threads(add_image_rows, threads, T, replaced, images, 2, hidden)
    expected[where] += images[where, 2 * K :]
    np.testing.assert_array_equal(hidden, expected)
