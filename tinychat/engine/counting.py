"""The costs of a step: its stages, their bytes and multiply-adds, and the columns of the arrays between them.

`engine.forward` runs with a team that computes nothing, and notes the costs that `engine.stages` declares.
"""

from typing import Any, NamedTuple

import numpy as np

from tinychat.engine.arguments import Batch, scratch_of
from tinychat.engine.dims import dims_of
from tinychat.engine.forward import forward
from tinychat.engine.named_tensors import NamedTensors, NamedWeight, named_caches
from tinychat.engine.parameters import parameters_of
from tinychat.engine.wiring import Stage
from tinychat.models.config import ModelConfig
from tinychat.models.layout import FREQUENT, Quantization, padded, tensor_specs


class Cost(NamedTuple):
    """One call of a stage: its name in profiles, the bytes that it reads, its multiply-adds."""

    kind: str
    bytes: int
    multiply_adds: int


class Width:
    """An array between stages: the number of its columns."""

    columns = 0

    def need(self, columns: int) -> None:
        """Note that a stage needs so many columns."""
        self.columns = max(self.columns, columns)


class Counter:
    """A team that notes stages instead of running them.

    `costs` : of the stages, in their order; `widths` : a `Scratch` with a `Width` for each array.
    """

    def __init__(self, config: ModelConfig, quantization: Quantization, T: int) -> None:
        self.config, self.T = config, T
        self.costs: list[Cost] = []
        self.widths = scratch_of(Width)
        self._multiple = quantization.column_multiple
        self._bytes: dict[str, int] = {}
        for name, spec in tensor_specs(config, quantization).items():
            linear = name.partition(".")[0].replace(FREQUENT, "embed_tokens")
            self._bytes[linear] = self._bytes.get(linear, 0) + spec.bytes

    @property
    def experts(self) -> tuple[int, int]:
        """Number of experts, and of those that a token passes."""
        assert self.config.choice is not None
        return self.config.choice.num_experts, self.config.choice.num_experts_per_tok

    def run(self, stage: Stage, *arguments: Any) -> None:
        """Note a stage."""
        stage.function(self, *arguments)

    def note(self, kind: str, bytes: int, multiply_adds: int = 0) -> None:
        """Note a cost."""
        self.costs.append(Cost(kind, int(bytes), int(multiply_adds)))

    def columns(self, weight: NamedWeight) -> int:
        """Return the columns of a weight's input, padding included."""
        return padded(weight.columns, self._multiple)

    def bytes(self, weight: NamedWeight) -> int:
        """Return the size of a weight; of experts or heads, of all of a layer; of another model's, 0."""
        return self._bytes.get(weight.name, 0) // (weight.layout.layers or 1)


def count_step(
    config: ModelConfig, quantization: Quantization, T: int, start: int = 0, position_bytes: int = 0
) -> Counter:
    """Count a step of `T` tokens after `start` others; position_bytes : of a position in the cache, over all layers."""
    counter, none = Counter(config, quantization, T), np.zeros(0, np.int64)
    positions = np.arange(start, start + T)
    batch = Batch(np.array([T, 1, 1, T]), none, positions, positions, *[none] * 10)
    p = parameters_of(config, NamedTensors(config))
    caches = named_caches(config, position_bytes)
    forward(counter, p, dims_of(config), caches, counter.widths, None, batch, Width())
    return counter
