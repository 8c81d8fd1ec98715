"""Several tensors of a file as the one that a checkpoint has for them."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinychat.checkpoint.group_codes import GroupCodes, concatenate
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form


class JoinedTensor(Tensor):
    """Several tensors of the same columns as one, their rows one below the other; `name` is for errors."""

    def __init__(self, name: str, parts: Sequence[Tensor]) -> None:
        self.path, self._name, self._parts = parts[0].path, name, parts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole.

        Raises
        ------
        CheckpointError
            If their columns differ.
        """
        shapes = [part.shape for part in self._parts]
        if len({shape[1:] for shape in shapes}) > 1:
            raise CheckpointError(f"{self.path}: the parts of {self._name} do not fit together: download it again")
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        rows: FloatArray = np.concatenate([part.read(*cut) for part, *cut in self._cuts(start, stop)])
        return rows

    @property
    def kind(self) -> str:
        """Name of their type, or of each."""
        return " and ".join(dict.fromkeys(part.kind for part in self._parts))

    @property
    def form(self) -> Form | None:
        """Form of the codes, where all are of one type."""
        return self._parts[0].form if len({part.kind for part in self._parts}) == 1 else None

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        return concatenate([part.read_codes(*cut) for part, *cut in self._cuts(start, stop)])

    def _cuts(self, start: int, stop: int) -> Iterator[tuple[Tensor, int, int]]:
        """Yield each part with the rows of it that the rows ``start..stop-1`` have."""
        first = 0
        for part in self._parts:
            rows = part.shape[0]
            yield part, min(max(start - first, 0), rows), min(max(stop - first, 0), rows)
            first += rows
