"""Names of a model's tensors instead of arrays: what calibration and counting run the forward pass with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinychat.kernels.variants import NoNorm, NoPositions
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.layout import WIDEST_GROUP, padded
from tinychat.models.tensors import POSITIONS, Linear, Norm, Table


@dataclass(frozen=True, slots=True)
class NamedWeight:
    """A linear of all layers, or of the one that it is indexed by; then `shard` is the layer's first."""

    layout: Linear
    shard: int = 0

    @property
    def name(self) -> str:
        """Name of its kind."""
        return self.layout.name

    @property
    def rows(self) -> int:
        """Outputs, N."""
        return sum(self.layout.rows)

    @property
    def columns(self) -> int:
        """Inputs, K."""
        return self.layout.columns

    def __getitem__(self, layer: int) -> NamedWeight:
        return replace(self, shard=layer * self.layout.parts)


@dataclass(frozen=True, slots=True)
class NamedVector:
    """A norm, or numbers that are stored like one, of some layers, or of the one that it is indexed by."""

    layout: Norm
    layers: tuple[int, ...]

    def __getitem__(self, index: int) -> NamedVector:
        return NamedVector(self.layout, self.layers[index : index + 1])


@dataclass(slots=True)
class NamedCache:
    """A layer of the KV cache: its heads, their size, and bytes of a position.

    Where other layers read it, a pass in NumPy leaves keys and values of each text in `held`.
    """

    heads: int
    head_dim: int
    bytes: int
    is_shared: bool
    held: Any = None


def named_caches(config: ModelConfig, position_bytes: int = 0) -> list[NamedCache]:
    """Return the layers of the KV cache; position_bytes : of a position in all of them."""
    sources = config.varied.sources if config.varied else ()
    shapes = [(heads, size) for layers, heads, size in config.cache_shapes for _ in range(layers)]
    numbers = sum(heads * size for heads, size in shapes)
    return [
        NamedCache(heads, size, position_bytes * heads * size // numbers, sources.count(layer) > 1)
        for layer, (heads, size) in zip(config.cache_layers, shapes, strict=True)
    ]


class NamedTensors:
    """The names of a configuration's tensors; the methods are those of `engine.folder_tensors.FolderTensors`."""

    def __init__(self, config: ModelConfig) -> None:
        self._linears = {linear.name: NamedWeight(linear) for linear in linears(config)}
        if config.larger_size is not None:
            # The larger model's, whose columns may be in wider groups.
            columns = padded(config.larger_size, WIDEST_GROUP)
            self._linears["embed_tokens"] = NamedWeight(Linear("embed_tokens", (), (config.vocab_size,), columns, None))
        self._norms = {norm.name: norm for norm in norms(config)}
        positions = (table for table in tables(config) if table.name == POSITIONS)
        self._positions: Table | NoPositions = next(positions, NoPositions())

    def embedding(self) -> NamedWeight:
        """Return the embedding."""
        return self._linears["embed_tokens"]

    def weight(self, name: str) -> NamedWeight:
        """Return a linear."""
        return self._linears[name]

    def norm(self, name: str, layers: Sequence[int] = (0,)) -> NamedVector | NoNorm:
        """Return a norm."""
        norm = self._norms.get(name)
        return NamedVector(norm, tuple(layers)) if norm and any(map(norm.is_in, layers)) else NoNorm()

    def vectors(self, name: str, factor: float = 1.0) -> Any:
        """Return other vectors, without the factor."""
        norm = self._norms[name]
        return NamedVector(norm, norm.at or tuple(range(norm.layers or 1)))

    def by_tap(self, name: str, channels: int) -> Any:
        """Return the taps of convolutions."""
        return self.vectors(name)

    def by_distance(self, name: str, factor: float) -> Any:
        """Return biases of scores, without the factor."""
        return self.vectors(name)

    def by_reach(self, name: str, rows: int, factor: float) -> Any:
        """Return profiles of scores, without the factor."""
        return self.vectors(name)

    def vector(self, name: str) -> Any:
        """Return a vector of no layer."""
        return self.vectors(name)

    def once(self, name: str) -> Any:
        """Return a vector of no layer."""
        return self.vectors(name)

    def positions(self) -> Table | NoPositions:
        """Return the layout of the vectors of positions."""
        return self._positions
