"""The final hidden states of tokens: the residual stream behind the last layer, normed as for the output matrix.

The compiled forward pass leaves the residual stream in its scratch. Only the last norm remains, which is a millionth of
the work: it is computed here in float64, term after term, so that a row has the same bits in any step and on any
processor.
"""

import numpy as np
from numpy.typing import NDArray

from tinychat.kernels.variants import LayerNorm, NoNorm, RmsNorm

States = NDArray[np.float64]


def normed_states(norm: RmsNorm | LayerNorm | NoNorm, eps: float, hidden: NDArray[np.float32]) -> States:
    """Return rows of the residual stream behind the last norm.

    Parameters
    ----------
    norm : RmsNorm, LayerNorm or NoNorm
        Gains and biases, float32 [>= D].
    eps : float
        What the norm adds to the mean square.
    hidden : float32 [T, D]

    Returns
    -------
    float64 [T, D], of its own memory
    """
    rows, D = hidden.astype(np.float64), hidden.shape[1]
    if isinstance(norm, NoNorm):
        return rows
    if isinstance(norm, LayerNorm):
        return layer_normed(rows, eps, norm.gain[:D], norm.bias[:D])
    return rms_normed(rows, eps, norm.gain[:D])


def rms_normed(rows: States, eps: float, gain: NDArray[np.generic]) -> States:
    """Return rows [T, D] behind an RMS norm with gains [D]; sums are those of `row_sums`."""
    normed: States = rows / np.sqrt(row_sums(rows * rows) / rows.shape[1] + eps) * gain
    return normed


def layer_normed(rows: States, eps: float, gain: NDArray[np.generic], bias: NDArray[np.generic]) -> States:
    """Return rows [T, D] behind a layer norm with gains and biases [D]; sums are those of `row_sums`."""
    D = rows.shape[1]
    centered = rows - row_sums(rows) / D
    normed: States = centered / np.sqrt(row_sums(centered * centered) / D + eps) * gain + bias
    return normed


def row_sums(rows: States) -> States:
    """Return the sum of each row [T, 1], term after term: NumPy's own sums depend on shape and processor."""
    sums: States = np.add.accumulate(rows, axis=1)[:, -1:]
    return sums
