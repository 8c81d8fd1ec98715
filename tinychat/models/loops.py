"""Layers that run several times for each token, in loops, with the same weights and a cache of their own each time.

The first layers run once, then those of the loop as often as the model says, then the last ones. What the first ones
give is held: each loop but the first begins with it, added to what the loop before gave (Dory); or with it alone, and
layers read messages of the loop before (`models.block_mixtures`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Loops:
    """The layers that run in loops: from `first` to ``last - 1``, `count` times."""

    first: int
    last: int
    count: int

    def layer_runs(self, layers: int) -> tuple[int, ...]:
        """Return `ModelConfig.layer_runs` of a model of so many layers."""
        return *range(self.last), *[*range(self.first, self.last)] * (self.count - 1), *range(self.last, layers)

    @property
    def held_after(self) -> int:
        """The run of a layer behind which the residual stream is held."""
        return self.first - 1

    @property
    def rejoined_after(self) -> tuple[int, ...]:
        """The runs behind which the next loop begins."""
        size = self.last - self.first
        return tuple(self.first + size * loop - 1 for loop in range(1, self.count))
