"""Cholesky factors of symmetric positive definite matrices, and systems of equations with them, in blocks.

NumPy's own functions go column by column; its matrix products do ten times as many operations a second.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
BLOCK = 128


def cholesky(matrix: Floats) -> Floats:
    """Return the lower triangular L of ``matrix = L L'``, float32 [K, K], written over the matrix."""
    root = matrix
    for start, stop in _blocks(len(matrix)):
        # The earlier blocks' part of these columns, in the diagonal block and below it.
        done = root[start:, :start]
        root[start:, start:stop] -= done @ done[: stop - start].T
        corner = np.linalg.cholesky(np.tril(root[start:stop, start:stop]))
        root[start:stop, start:stop] = corner
        root[start:stop, stop:] = 0
        root[stop:, start:stop] = root[stop:, start:stop] @ np.linalg.inv(corner).T
    return root


def solve(matrix: Floats, right: Floats) -> Floats:
    """Return x of ``matrix @ x = right``, float32 [K, N]; the matrix is overwritten."""
    root, x = cholesky(matrix), right.copy()
    blocks = list(_blocks(len(matrix)))
    inverses = [np.linalg.inv(root[start:stop, start:stop]) for start, stop in blocks]
    for (start, stop), inverse in zip(blocks, inverses):
        x[start:stop] = inverse @ (x[start:stop] - root[start:stop, :start] @ x[:start])
    for (start, stop), inverse in zip(reversed(blocks), reversed(inverses)):
        x[start:stop] = inverse.T @ (x[start:stop] - root[stop:, start:stop].T @ x[stop:])
    return x


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, BLOCK):
        yield start, min(start + BLOCK, count)
