"""Several tensors of a file as the one that a checkpoint has for them."""

from collections.abc import Iterator, Sequence

import numpy as np

from tinychat.checkpoint.group_codes import GroupCodes, joined_rows
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensors
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form


class JoinedTensor:
    """Several tensors of the same columns as one, their rows one below the other.

    Parameters
    ----------
    tensors : Tensors
    names : sequence of str
        Theirs, from the top.
    """

    def __init__(self, tensors: Tensors, names: Sequence[str]) -> None:
        self._tensors, self._names = tensors, names
        self.path = tensors.files[names[0]].path

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole.

        Raises
        ------
        CheckpointError
            If one is missing, or their columns differ.
        """
        shapes = [self._tensors.shape(part) for part in self._names]
        if len({shape[1:] for shape in shapes}) > 1:
            raise CheckpointError(f"{self.path}: {' and '.join(self._names)} do not fit together: download it again")
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        self.shape(name)
        rows: FloatArray = np.concatenate([self._tensors.read(part, *cut) for part, *cut in self._cuts(start, stop)])
        return rows

    def kind(self, name: str) -> str:
        """Return the name of their type, or of each."""
        return " and ".join(dict.fromkeys(self._tensors.kind(part) for part in self._names))

    def form(self, name: str) -> Form | None:
        """Return how their codes can be kept, where all are of one type."""
        return self._tensors.form(self._names[0]) if " and " not in self.kind(name) else None

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of tensors that have a form, as codes."""
        return joined_rows([self._tensors.read_codes(part, *cut) for part, *cut in self._cuts(start, stop)])

    def _cuts(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield which rows of each tensor the rows ``start..stop-1`` are."""
        first = 0
        for part in self._names:
            rows = self._tensors.shape(part)[0]
            yield part, min(max(start - first, 0), rows), min(max(stop - first, 0), rows)
            first += rows
