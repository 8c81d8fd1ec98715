"""One linear's weights as four-bit codes: plain, by importance, or with error feedback."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.conversion.cores import run_shares
from tinychat.conversion.positive_definite import cholesky
from tinychat.kernels.codebook import END_FRACTIONS, TABLE, code_columns, find_row_scales
from tinychat.kernels.sizes import LANES

Floats = NDArray[np.float32]
# Columns that are coded before one matrix product passes their errors on: first to those that follow within a block of
# `WIDE_COLUMNS`, and after such a block to all that follow it.
FEEDBACK_COLUMNS, WIDE_COLUMNS = 96, 768
# A row's largest scale may grow by this factor: feedback makes some weights larger.
SLACK = 1.1
# Added to the diagonal of the inputs' second moments: a share of each entry, and of their mean.
SHRINKAGE = 0.3
DAMPING = 0.001
_NUMBERS = np.arange(16, dtype=np.float32)


class Coded(NamedTuple):
    """Transposed codes uint8 [K, N], scales int8 [K / group_size, N], row scales float32 [N], table int8 [16]."""

    codes: NDArray[np.uint8]
    scales: NDArray[np.int8]
    row_scales: Floats
    table: NDArray[np.int8]

    def values(self) -> Floats:
        """Return the weights of the codes, float32 [K, N]."""
        K, groups = len(self.codes), len(self.scales)
        scales = self.scales.astype(np.float32) * self.row_scales
        values = self.table.astype(np.float32)[self.codes].reshape(groups, K // groups, -1)
        values *= scales[:, None]
        return values.reshape(K, -1)


def arrays_of(coded: Coded) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an `Int4Weight` without its bias."""
    K, N = coded.codes.shape
    nibbles = coded.codes.reshape(K // 8, 2, 4, N // LANES, LANES)
    packed = nibbles[:, 0] | nibbles[:, 1] << 4
    return {
        "packed": np.ascontiguousarray(packed.transpose(2, 0, 3, 1)),
        "scales": np.ascontiguousarray(coded.scales.reshape(-1, N // LANES, LANES).transpose(1, 0, 2)),
        "row_scales": coded.row_scales.reshape(N // LANES, LANES),
        "table": coded.table,
    }


class Feedback(NamedTuple):
    """How errors are passed on: the order of the columns [K], and R [K, K] and D [K] of `factor` in that order."""

    order: NDArray[np.intp]
    factors: Floats
    importance: Floats


class Coder:
    """Chooses codes for weights, on every core; `group_size` columns share one scale."""

    def __init__(self, group_size: int = 32) -> None:
        self.group_size = group_size
        self._values = TABLE.astype(np.float32)
        self._borders = (self._values[1:] + self._values[:-1]) / 2
        self._places = np.concatenate([self._values[0] * END_FRACTIONS, self._values[-1] * END_FRACTIONS])

    def code(self, weights: Floats, importance: Floats) -> Coded:
        """Code transposed weights [K, N] so that the sum of squared errors is small, weighted by importance [K]."""
        K, N = weights.shape
        coded = self._empty(K, N)
        shared = (self.group_size, importance, self._values, self._borders, self._places)
        run_shares(find_row_scales, weights, *shared, coded.row_scales)
        no_feedback, errors = np.empty((0, 0), np.float32), np.empty((K, N), np.float32)
        run_shares(
            code_columns, weights, weights, *shared, no_feedback, coded.row_scales,
            _NUMBERS, coded.codes, coded.scales, errors,
        )  # fmt: skip
        return coded

    def feedback(self, moments: Floats) -> Feedback:
        """Return the feedback of errors for inputs of these second moments [K, K].

        Groups are coded in the order of their columns' mean square, the largest first, and so are the columns of each.
        """
        order = self._order(moments)
        return Feedback(order, *factor(moments, order))

    def code_with_feedback(self, weights: Floats, feedback: Feedback) -> Coded:
        """Code transposed weights [K, N] with error feedback (GPTQ)."""
        K, N = weights.shape
        order, factors, importance = feedback
        targets = weights[order]
        in_order = self._empty(K, N)
        shared = (self._values, self._borders, self._places)
        run_shares(find_row_scales, targets, self.group_size, importance, *shared, in_order.row_scales)
        np.multiply(in_order.row_scales, SLACK, out=in_order.row_scales)
        step = max(self.group_size, FEEDBACK_COLUMNS // self.group_size * self.group_size)
        wide = WIDE_COLUMNS // step * step
        errors = np.empty((min(wide, K), N), np.float32)
        for first in range(0, K, step):
            part = slice(first, min(first + step, K))
            start = first // wide * wide
            end = min(start + wide, K)
            lost = errors[first - start : part.stop - start]
            own = np.ascontiguousarray(factors[part, part])
            # The kernel's arguments: inputs, then what it writes.
            known = (weights[order[part]], targets[part], self.group_size, importance[part], *shared, own)
            groups = slice(first // self.group_size, part.stop // self.group_size)
            written = (in_order.codes[part], in_order.scales[groups], lost)
            run_shares(code_columns, *known, in_order.row_scales, _NUMBERS, *written)
            if part.stop < end:
                targets[part.stop : end] += np.ascontiguousarray(factors[part, part.stop : end].T) @ lost
            elif end < K:
                targets[end:] += factors[start:end, end:].T @ errors
        coded = self._empty(K, N)
        coded.codes[order] = in_order.codes
        coded.scales[order[:: self.group_size] // self.group_size] = in_order.scales
        return coded._replace(row_scales=in_order.row_scales)

    def _order(self, moments: Floats) -> NDArray[np.intp]:
        squares = np.diag(moments).reshape(-1, self.group_size)
        groups = squares.mean(axis=1).argsort(kind="stable")[::-1]
        inside = squares.argsort(axis=1, kind="stable")[:, ::-1]
        return np.asarray(groups[:, None] * self.group_size + inside[groups], np.intp).reshape(-1)

    def _empty(self, K: int, N: int) -> Coded:
        return Coded(
            np.empty((K, N), np.uint8),
            np.empty((K // self.group_size, N), np.int8),
            np.empty(N, np.float32),
            TABLE,
        )


def factor(moments: Floats, order: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Factor second moments H, in an order of columns, their diagonal enlarged, into R D R': R, D in float32.

    R is unit upper triangular. From some thousands of tokens, the moments between columns are known only roughly, each
    column's own mean square well: a larger diagonal gives the latter more weight.
    """
    # The largest matrix of a conversion: it is changed in place.
    enlarged = moments[np.ix_(order[::-1], order[::-1])]
    diagonal = np.diag_indices_from(enlarged)
    enlarged[diagonal] += SHRINKAGE * enlarged[diagonal] + np.float32(DAMPING * enlarged[diagonal].mean() + 1e-12)
    root = cholesky(enlarged)
    _reverse(root.reshape(-1))
    scale = np.diag(root).copy()
    root /= scale
    return root, scale**2


def _reverse(numbers: Floats) -> None:
    """Reverse an array in place."""
    half = len(numbers) // 2
    beginning = numbers[:half].copy()
    numbers[:half] = numbers[: -half - 1 : -1]
    numbers[len(numbers) - half :] = beginning[::-1]
