"""The connector: rows of the text model from what a vision tower gives of a tile.

Squares of patches become one row each, all of their numbers or the means of these, and one or more linears bring that
to the width of the text model. Their sums have the same bits on any processor: inputs and weights are rounded to whole
numbers of a unit for each row, so small that float64 holds any sum of their products exactly, whatever the order.
Inputs keep 20 bits of a row's largest number, and weights 17: of an output's standard deviation, the error is some
1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.engine.hidden_states import layer_normed, rms_normed
from tinychat.models.dense import specs_of
from tinychat.models.folder import map_weights
from tinychat.models.portable_math import gelu
from tinychat.models.seeing.parts import MOST_COLUMNS, STANDARD, ConnectorParts
from tinychat.models.vision import CONNECTOR, VISION_FOLDER, Vision

Wide = NDArray[np.float64]
INPUT_BITS, WEIGHT_BITS = 20, 17
# What float64 counts without gaps.
assert MOST_COLUMNS << (INPUT_BITS + WEIGHT_BITS) <= 1 << 53
# Rows of the weight that are widened to float64 at a time.
_SLAB_ROWS = 256
# Rows whose GELUs are computed at a time, while the processor's cache holds them.
_ACTIVATED_ROWS = 8


class ExactLinear:
    """A linear whose sums are exact.

    weight : [rows, columns]; bias : [rows], or None.
    """

    def __init__(self, weight: NDArray[np.generic], bias: NDArray[np.generic] | None = None) -> None:
        codes, units = whole_numbers(weight.astype(np.float64), WEIGHT_BITS)
        # Exact, in half of the memory.
        self._codes, self._units = codes.astype(np.float32), units
        self._bias = None if bias is None else bias.astype(np.float64)

    def apply(self, x: Wide) -> Wide:
        """Return the outputs of rows [T, columns]: [T, rows]."""
        codes, units = whole_numbers(x, INPUT_BITS)
        found = np.empty((len(codes), len(self._codes)))
        for first in range(0, len(self._codes), _SLAB_ROWS):
            slab = slice(first, first + _SLAB_ROWS)
            found[:, slab] = (codes @ self._codes[slab].astype(np.float64).T) * (units * self._units[slab].T)
        return found if self._bias is None else found + self._bias


class Connector:
    """A connector of some parts; tensors : by their names in a model folder."""

    def __init__(self, parts: ConnectorParts, tensors: Mapping[str, NDArray[np.generic]]) -> None:
        self._parts, own = parts, {name: tensors[f"{parts.prefix}{name}"] for name in parts.shapes}
        norm = (f"{parts.norm}.weight", f"{parts.norm}.bias")
        self._norm = [own[name].astype(np.float64) for name in norm if name in own]
        self._standard = [own[f"{parts.standard}{part}"].astype(np.float64) for part in STANDARD if parts.standard]
        self._linears = [
            ExactLinear(own[f"{linear.name}.weight"], own.get(f"{linear.name}.bias")) for linear in parts.linears
        ]

    def rows(self, states: Wide, grid: tuple[int, int]) -> NDArray[np.float32]:
        """Return the rows of a tile, float32 [tokens, text_size].

        states : behind the tower, or its layer, [patches, D]; grid : rows and columns of patches.
        """
        x = self._inputs(states, grid)
        for parts, linear in zip(self._parts.linears, self._linears):
            for row in range(0, len(x) if parts.activated else 0, _ACTIVATED_ROWS):
                part = slice(row, row + _ACTIVATED_ROWS)
                x[part] = gelu(x[part])
            x = linear.apply(x)
        return x.astype(np.float32)

    def _inputs(self, states: Wide, grid: tuple[int, int]) -> Wide:
        """Return the inputs of the first linear."""
        parts, size = self._parts, self._parts.scale_factor**2
        if parts.merges:
            states = rms_normed(states, parts.norm_eps, self._norm[0])
            return joined_squares(states, grid, parts.scale_factor, by_channel=True)
        squares = joined_squares(states, grid, parts.scale_factor)
        if not parts.averages:
            return layer_normed(squares, parts.norm_eps, *self._norm) if parts.norm else squares
        means = np.zeros((len(squares), squares.shape[1] // size))
        for patches in np.split(squares, size, axis=1):
            means += patches / size
        means *= parts.times
        if self._standard:
            less, scale = self._standard
            means = (means - less) * scale
        return rms_normed(means, parts.norm_eps, 1 + self._norm[0] if self._norm else np.ones(1))


def read_connectors(folder: Path, vision: Vision) -> list[Connector]:
    """Read the connector of a model folder, and the others; ModelFolderError for a damaged file."""
    tensors = map_weights(folder / VISION_FOLDER / CONNECTOR, specs_of(vision.connector_shapes))
    return [Connector(parts, tensors) for parts in (vision.connector, *vision.others)]


def joined_squares(states: Wide, grid: tuple[int, int], size: int, *, by_channel: bool = False) -> Wide:
    """Return squares of `size` by `size` patches of a tile as rows: [patches, D] as [tokens, size size D].

    by_channel : the numbers of a row are those of each channel one after the other, not of each patch.
    """
    (height, width), columns = grid, states.shape[1]
    squares = states.reshape(height // size, size, width // size, size, columns)
    squares = squares.transpose((0, 2, 4, 1, 3) if by_channel else (0, 2, 1, 3, 4))
    return squares.reshape(-1, size * size * columns)


def whole_numbers(rows: Wide, bits: int) -> tuple[Wide, Wide]:
    """Return rows as whole numbers up to ``2**bits`` of a unit each, and the units [rows, 1]."""
    units: Wide = np.abs(rows).max(axis=1, keepdims=True) / 2**bits
    return np.rint(np.divide(rows, units, out=np.zeros_like(rows), where=units > 0)), units
