"""The connector: rows of the text model from what a vision tower gives of a tile.

Squares of patches become one long row each, and a linear brings that to the width of the text model. Its sums have the
same bits on any processor: inputs and weights are rounded to whole numbers of a unit for each row, so small that
float64 holds any sum of their products exactly, whatever the order. Inputs keep 20 bits of a row's largest number, and
weights 17: of an output's standard deviation, the error is some 1e-5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.models.dense import specs_of
from tinychat.models.folder import map_weights
from tinychat.models.vision import CONNECTOR, CONNECTOR_WEIGHT, MOST_COLUMNS, VISION_FOLDER, Vision

Wide = NDArray[np.float64]
INPUT_BITS, WEIGHT_BITS = 20, 17
# What float64 counts without gaps.
assert MOST_COLUMNS << (INPUT_BITS + WEIGHT_BITS) <= 1 << 53
# Rows of the weight that are widened to float64 at a time.
_SLAB_ROWS = 256


class Connector:
    """A connector with its weight, [text_size, columns]; scale_factor : see `Vision`."""

    def __init__(self, weight: NDArray[np.generic], scale_factor: int) -> None:
        codes, units = whole_numbers(weight.astype(np.float64), WEIGHT_BITS)
        # Exact, in half of the memory.
        self._codes, self._units, self._scale_factor = codes.astype(np.float32), units, scale_factor

    def rows(self, states: Wide) -> NDArray[np.float32]:
        """Return the rows of a tile, float32 [tokens, text_size], of its states behind the tower [patches, D]."""
        codes, units = whole_numbers(joined_squares(states, self._scale_factor), INPUT_BITS)
        found = np.empty((len(codes), len(self._codes)), np.float32)
        for first in range(0, len(self._codes), _SLAB_ROWS):
            slab = slice(first, first + _SLAB_ROWS)
            found[:, slab] = (codes @ self._codes[slab].astype(np.float64).T) * (units * self._units[slab].T)
        return found


def read_connector(folder: Path, vision: Vision) -> Connector:
    """Read the connector of a model folder; ModelFolderError for a damaged file."""
    file = folder / VISION_FOLDER / CONNECTOR
    return Connector(map_weights(file, specs_of(vision.connector_shapes))[CONNECTOR_WEIGHT], vision.scale_factor)


def joined_squares(states: Wide, size: int) -> Wide:
    """Return squares of `size` by `size` patches of a square tile as rows: [patches, D] as [tokens, size size D]."""
    grid, columns = round(len(states) ** 0.5), states.shape[1]
    squares = states.reshape(grid // size, size, grid // size, size, columns).transpose(0, 2, 1, 3, 4)
    return squares.reshape(-1, size * size * columns)


def whole_numbers(rows: Wide, bits: int) -> tuple[Wide, Wide]:
    """Return rows as whole numbers up to ``2**bits`` of a unit each, and the units [rows, 1]."""
    units: Wide = np.abs(rows).max(axis=1, keepdims=True) / 2**bits
    return np.rint(np.divide(rows, units, out=np.zeros_like(rows), where=units > 0)), units
