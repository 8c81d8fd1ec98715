"""A model's linear layers and norms, and the names of their tensors in the checkpoint.

A name may be of what a tensor is computed from, when the checkpoint is read (`checkpoint.adjusted`):

=================== ========================================================================= ================
in_proj[0:64/192]   the first 64 rows of the tensor ``in_proj``, which has 192                  `rows_of`
fc[,0:64/128]       the first 64 columns of ``fc``, which has 128                               `columns_of`
a+b                 the rows of ``a``, and below them those of ``b``                            `joined`
a@b, a@b.T          the matrix ``a`` times ``b``, or times its transpose                        `product`
a^b                 the matrix ``a``, to each row of which the first row of ``b`` is added      `with_first_row`
a*b                 the matrix ``a``, each row of which is times its number of the vector ``b`` `times_rows`
=================== ========================================================================= ================
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Order: TypeAlias = "tuple[NDArray[np.intp] | None, ...]"
"""For each source of a linear, the checkpoint's row of each row, or None where they stay; empty if all do."""


@dataclass(frozen=True)
class Linear:
    """Linear layers of one kind, and the checkpoint's weights that make up the rows of each, top to bottom."""

    name: str  # in the model folder
    # Names in the checkpoint, or of parts, without .weight; {}: the layer, {}: the expert or head.
    sources: tuple[str, ...]
    rows: tuple[int, ...]  # of each source
    columns: int
    layers: int | None  # number of layers that have it; None outside of the decoder's layers
    bias: bool = False
    first: int = 0  # row of its only source at which it begins
    order: Order = field(default=(), compare=False)
    scale: float = 1.0  # multiplies the checkpoint's weights and biases
    scales: tuple[float, ...] = ()  # the same of each source, where these differ
    transposed: bool = False  # the checkpoint has the weights as [K, N] (GPT-2's Conv1D)
    unit_rows: bool = False  # each row of the checkpoint's weights is divided by its length
    experts: int = 0  # of each layer; 0 for a linear that does not belong to one
    heads: int = 0  # of each layer, that have weights of their own; 0 for a linear of all heads
    at: tuple[int, ...] = ()  # the layers that have it; empty if all do
    cut: int = 1  # rows that each row of the checkpoint's tensor is cut into

    @property
    def parts(self) -> int:
        """Number of its weights in a layer: one for each expert or head, or one."""
        return self.experts or self.heads or 1

    @property
    def stack(self) -> tuple[int, ...]:
        """Axes that the weights of its kind are stacked along: layers, and experts or heads."""
        if self.layers is None:
            return ()
        return (self.layers, self.parts) if self.experts or self.heads else (self.layers,)

    @property
    def shards(self) -> int:
        """Number of its shards, one for each layer and expert or head: of the first layer all, and so on."""
        return math.prod(self.stack)

    @property
    def weights(self) -> int:
        """Number of weights of all of its kind."""
        return self.shards * sum(self.rows) * self.columns

    def layer_of(self, shard: int) -> int:
        """Return the layer that a shard belongs to."""
        layer = shard // self.parts
        return self.at[layer] if self.at else layer

    def names(self, shard: int) -> list[str]:
        """Return the sources' names in the checkpoint for a shard, without ``.weight``."""
        return [source.format(self.layer_of(shard), shard % self.parts) for source in self.sources]


@dataclass(frozen=True)
class Norm:
    """Gains of the norms of one kind: ``scale * (offset + the checkpoint's weights)``, and biases times the scale.

    function : the checkpoint has numbers of which this is taken first: "softplus" is ``log(1 + exp(w))``, "exp" is
    ``exp(w)``, "abs" is ``|w|``, "square" is ``w**2``.

    They are padded like the columns of the linear that follows; those of heads, not at all. Attention's sinks, a number
    for each head, are stored like one, and so are the taps of convolutions, which checkpoints have with more axes.
    `at` lists the layers that have it; empty if all do.
    """

    name: str
    source: str  # "" where no tensor has them: gains are the scale
    size: int
    layers: int | None
    padded: bool = True
    bias: bool = False
    offset: float = 0.0
    scale: float = 1.0
    at: tuple[int, ...] = ()
    flattened: bool = False
    function: Literal["", "softplus", "exp", "abs", "square"] = ""

    def is_in(self, layer: int) -> bool:
        """Return whether a layer has it."""
        return not self.at or layer in self.at

    @property
    def sources(self) -> list[str]:
        """Names in the checkpoint, without ``.weight``, by layer; none where no tensor has them."""
        if not self.source:
            return []
        return [self.source.format(layer) for layer in self.at or range(self.layers or 1)]


# Names of tables: the vectors of positions, and the matrix of what follows the last norm (`ModelConfig.embedding_dim`).
POSITIONS, PROJECTION = "embed_positions", "embedding_proj"
# Vectors of positions that are not added as they are (`ModelConfig.position_grid`).
GRID_POSITIONS = "grid_positions"


@dataclass(frozen=True)
class Table:
    """Vectors that stay float32, such as those of positions: rows `first` to ``first + rows`` of a tensor."""

    name: str
    source: str
    rows: int
    columns: int
    first: int = 0


def rows_of(source: str, *sizes: int) -> list[str]:
    """Return the names of parts of a tensor that has the rows of several, by their sizes: ``name[first:stop/rows]``."""
    whole, stops = sum(sizes), accumulate(sizes)
    return [f"{source}[{stop - size}:{stop}/{whole}]" for size, stop in zip(sizes, stops)]


def columns_of(source: str, *sizes: int) -> list[str]:
    """Return the names of parts of a tensor that has the columns of several: ``name[,first:stop/columns]``."""
    return [name.replace("[", "[,") for name in rows_of(source, *sizes)]


def joined(*sources: str) -> str:
    """Return the name of several tensors as one, their rows one below the other."""
    return "+".join(sources).replace("{}", "{0}")


def product(source: str, factor: str) -> str:
    """Return the name of a matrix times another one, the transpose of a tensor where its name ends in ``.T``."""
    return f"{source}@{factor}"


def with_first_row(source: str, other: str) -> str:
    """Return the name of a matrix to each row of which the first row of another one is added."""
    return f"{source}^{other}"


def times_rows(source: str, *vectors: str) -> str:
    """Return the name of a matrix each row of which is multiplied by its number of each of some vectors."""
    return "*".join((source, *vectors)).replace("{}", "{0}")


class Part(NamedTuple):
    """Rows or columns of a tensor, and how many it has in all."""

    axis: int
    first: int
    stop: int
    whole: int


def whole_and_part(name: str) -> tuple[str, Part | None]:
    """Return the name of the tensor that a part is of, and the part; None for a tensor of its own."""
    stem, _, rest = name.partition("[")
    numbers, _, ending = rest.partition("]")
    axis = int(numbers.startswith(","))
    part = Part(axis, *map(int, re.split("[:/]", numbers[axis:]))) if numbers else None
    return stem + ending, part


def split_order(groups: int, group: int, head_dim: int) -> NDArray[np.intp]:
    """Return the order of rows of queries, keys and values that stand together for each key/value head.

    A group has `group` heads of queries, then one of keys, then one of values; in the result all queries stand before
    all keys, and these before all values.
    """
    import numpy as np

    heads = np.arange(groups * (group + 2)).reshape(groups, group + 2)
    order = np.concatenate([heads[:, :group].reshape(-1), heads[:, group], heads[:, group + 1]])
    rows: NDArray[np.intp] = (order[:, None] * head_dim + np.arange(head_dim)).reshape(-1)
    return rows


def halves_order(heads: int, head_dim: int, rotary_dim: int, others: int = 0) -> NDArray[np.intp]:
    """Return the order of rows of heads whose channels 2i and 2i + 1 are rotated together.

    In the result those are i and i + rotary_dim / 2, as `models.rope` has it; the others stay, as do the `others` rows
    that follow the heads.
    """
    import numpy as np

    rotated = np.arange(rotary_dim).reshape(-1, 2).T.reshape(-1)
    head = np.concatenate([rotated, np.arange(rotary_dim, head_dim)])
    rows = (np.arange(heads)[:, None] * head_dim + head).reshape(-1)
    order: NDArray[np.intp] = np.concatenate([rows, np.arange(len(rows), len(rows) + others)])
    return order


def alternating_order(count: int) -> NDArray[np.intp]:
    """Return the order of rows of two kinds that alternate, `count` of each: all of the first kind first."""
    import numpy as np

    return np.arange(2 * count).reshape(-1, 2).T.reshape(-1)
