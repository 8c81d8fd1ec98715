"""Names of a model's tensors in the place of arrays: what calibration and counting run the forward pass with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinychat.kernels.variants import NoNorm, NoPositions
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.tensors import Linear, Norm


@dataclass(frozen=True, slots=True)
class NamedWeight:
    """A linear: of all layers, or of the one that it is indexed by, with all of that layer's experts.

    Attributes
    ----------
    layout : Linear
    shard : int
        Which one of its kind (`models.tensors.Linear`); of experts, the first of the layer.
    """

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
        return replace(self, shard=layer * (self.layout.experts or 1))


@dataclass(frozen=True, slots=True)
class NamedVector:
    """A norm, or other numbers that are stored like one: of some layers, or of the one that it is indexed by.

    Attributes
    ----------
    layout : Norm
    layers : tuple of int
    """

    layout: Norm
    layers: tuple[int, ...]

    @property
    def source(self) -> str:
        """Name in the checkpoint, without ``.weight``, of the first layer's."""
        return self.layout.source.format(self.layers[0])

    def __getitem__(self, index: int) -> NamedVector:
        return NamedVector(self.layout, self.layers[index : index + 1])


class NamedTensors:
    """The tensors of a configuration: see `engine.parameters.Tensors`."""

    def __init__(self, config: ModelConfig) -> None:
        self._linears = {linear.name: linear for linear in linears(config)}
        self._norms = {norm.name: norm for norm in norms(config)}
        self._tables = tables(config)

    def embedding(self) -> NamedWeight:
        """Return the embedding."""
        return self.weight("embed_tokens")

    def weight(self, name: str) -> NamedWeight:
        """Return a linear."""
        return NamedWeight(self._linears[name])

    def norm(self, name: str, layers: Sequence[int] | None = None) -> NamedVector | NoNorm:
        """Return a norm."""
        if name not in self._norms:
            return NoNorm()
        return NamedVector(self._norms[name], (0,) if layers is None else tuple(layers))

    def vectors(self, name: str, factor: float = 1.0) -> NamedVector:
        """Return other vectors, without the factor."""
        norm = self._norms[name]
        return NamedVector(norm, norm.at or tuple(range(norm.layers or 1)))

    def positions(self) -> Any:
        """Return the layout of the vectors of positions, or `NoPositions`."""
        return self._tables[0] if self._tables else NoPositions()
