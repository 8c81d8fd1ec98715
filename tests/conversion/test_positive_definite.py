"""Factors and solutions against NumPy's in float64."""

import numpy as np
import pytest

from tinychat.conversion.positive_definite import BLOCK, cholesky, solve

sizes = pytest.mark.parametrize("size", [1, 2, 97, BLOCK, BLOCK + 1, 3 * BLOCK - 5])


def random_matrix(rng, size):
    """Return second moments of columns of very different sizes, their diagonal enlarged."""
    columns = rng.standard_normal((2 * size, size)) * np.exp(2 * rng.standard_normal(size))
    moments = columns.T @ columns / len(columns)
    moments[np.diag_indices(size)] *= 1.2
    return moments.astype(np.float32)


@sizes
def test_the_factor_is_lower_triangular_and_gives_the_matrix(size, rng):
    matrix = random_matrix(rng, size)
    root = cholesky(matrix.copy())
    assert root.dtype == np.float32
    assert not np.triu(root, 1).any()
    deviations = np.sqrt(np.diag(matrix).astype(np.float64))
    error = np.abs(root.astype(np.float64) @ root.T - matrix) / np.outer(deviations, deviations)
    assert error.max() < 1e-5


@sizes
def test_solutions_are_those_of_float64(size, rng):
    matrix, right = random_matrix(rng, size), rng.standard_normal((size, 7)).astype(np.float32)
    exact = np.linalg.solve(matrix.astype(np.float64), right)
    found = solve(matrix.copy(), right)
    assert found.dtype == np.float32
    assert (np.abs(found - exact) <= 1e-3 * np.abs(exact).max(axis=1, keepdims=True)).all()


def test_what_has_no_factor_is_refused():
    with pytest.raises(np.linalg.LinAlgError):
        cholesky(-np.eye(3, dtype=np.float32))
