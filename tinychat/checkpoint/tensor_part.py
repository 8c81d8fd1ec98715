"""Rows of a tensor as a tensor of their own: of one expert, or of one of the parts that share a tensor."""

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form


class TensorPart(Tensor):
    """Rows of a tensor from one on, as a tensor of its own shape."""

    def __init__(self, tensor: Tensor, first: int, shape: tuple[int, ...]) -> None:
        self.path, self._tensor, self._first, self._shape = tensor.path, tensor, first, shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of these rows."""
        return self._shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        if len(self._shape) == 1 < len(self._tensor.shape):
            return self._tensor.read(self._first, self._first + 1)[0, start:stop]
        if len(self._shape) > len(self._tensor.shape):
            return self._tensor.read(0, self._shape[1])[None][start:stop]
        return self._tensor.read(self._first + start, self._first + stop)

    @property
    def kind(self) -> str:
        """Name of the tensor's type."""
        return self._tensor.kind

    @property
    def form(self) -> Form | None:
        """Form of the tensor's codes."""
        return self._tensor.form

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        return self._tensor.read_codes(self._first + start, self._first + stop)


def part_of(tensor: Tensor, name: str, rows: tuple[int, ...]) -> TensorPart:
    """Return the rows of a tensor that `tinychat.models.tensors.whole_and_rows` gave for a name."""
    first, stop, whole = rows
    count, *columns = tensor.shape
    if count != whole:
        raise CheckpointError(f"{tensor.path}: {name} is of a tensor of {count} rows: download the checkpoint again")
    return TensorPart(tensor, first, (stop - first, *columns))
