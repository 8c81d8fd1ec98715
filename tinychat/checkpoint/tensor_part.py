"""Parts of a tensor as tensors of their own, of one expert or of those that share a tensor; and tensors as one."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes, concatenate
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form
from tinychat.models.tensors import Part

_AXES_OF_EACH = 3  # of several matrices
_COLOURS = 3
_AXES_OF_FRAMES = 5  # of a convolution over frames, rows and columns


class Numbers(Tensor):
    """Numbers that a file has elsewhere than in a tensor, float32."""

    def __init__(self, path: Path, numbers: NDArray[np.floating]) -> None:
        self.path, self._numbers = path, numbers.astype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self._numbers.shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return numbers ``start..stop-1``."""
        return self._numbers[start:stop]


class TensorPart(Derived):
    """Rows of a tensor from one on, as a tensor of its own shape."""

    def __init__(self, tensor: Tensor, first: int, shape: tuple[int, ...]) -> None:
        super().__init__(tensor)
        self._first, self._shape = first, shape

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
    def form(self) -> Form | None:
        """Form of the tensor's codes."""
        return self._tensor.form

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        return self._tensor.read_codes(self._first + start, self._first + stop)


class StackedTensor(Derived):
    """One expert's weight or bias, of a tensor of all; `stem` is its name, for errors.

    `half` : which half of its rows, if two weights share a tensor; transposed : whether the tensor has columns first.
    """

    def __init__(
        self, tensor: Tensor, stem: str, expert: int, half: int | None = None, transposed: bool = False
    ) -> None:
        super().__init__(tensor)
        self._stem, self._expert = stem, expert
        self._half, self._transposed = half, transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [N, K] of a weight, or [N] of a bias."""
        experts, *axes = self._tensor.shape or (0,)
        if self._expert >= experts:
            raise CheckpointError(f"{self.path}: {self._stem} has {experts} experts: download the checkpoint again")
        rows, *columns = axes[::-1] if self._transposed else axes or [0]
        return rows if self._half is None else rows // 2, *columns

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        first = (self._half or 0) * self.shape[0]
        values = self._tensor.read(self._expert, self._expert + 1)[0]
        return np.ascontiguousarray((values.T if self._transposed else values)[first + start : first + stop])

    def read_integers(self) -> NDArray[Any]:
        """Return whole numbers, of a tensor that is neither halved nor transposed."""
        found: NDArray[Any] = self._tensor.read_integers()[self._expert]
        return found


class PackedTensor(Tensor):
    """A weight of several tensors, as of codes and of scales; of mlx, perhaps, of those of all experts."""

    _stem: str  # its name without ``.weight``

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self._stem}.{name} {what}: download the checkpoint again")

    @abstractmethod
    def of_expert(self, expert: int) -> Tensor:
        """Return the weight of one expert, where the tensors are those of all."""


def tensors_of_expert(tensors: Tensors, stem: str, expert: int) -> Tensors:
    """Return the tensors that a weight of mlx is made of, for one expert."""
    names = [name for part in ("weight", "scales", "biases") if (name := f"{stem}.{part}") in tensors.by_name]
    return Tensors(tensors.folder, {name: StackedTensor(tensors[name], name, expert) for name in names})


class Scalars(Tensor):
    """Scalars as one vector, float32; infinite ones are the largest numbers there are. None : there is none, infinite.

    The even ones are lower bounds, the others upper ones.
    """

    def __init__(self, parts: Sequence[Tensor | None], of: Tensor) -> None:
        self._comes_with(of, *(part for part in parts if part is not None))
        self._parts = parts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the vector."""
        return (len(self._parts),)

    def read(self, start: int, stop: int) -> FloatArray:
        """Return numbers ``start..stop-1``."""
        largest = np.finfo(np.float32).max
        bounds = [largest if index % 2 else -largest for index in range(len(self._parts))]
        for index, part in enumerate(self._parts):
            if part is not None:
                if part.shape not in ((), (1,)):
                    raise CheckpointError(f"{part.path}: a bound of a linear has shape {list(part.shape)}; expected []")
                bounds[index] = np.float32(part.read(0, 1).reshape(()))
        return np.asarray(bounds, np.float32).clip(-largest, largest)[start:stop]


class Matrices(Derived):
    """A tensor [count, rows, columns] of a file that has its rows one below the other."""

    def read(self, start: int, stop: int) -> FloatArray:
        """Return matrices ``start..stop-1``."""
        _, rows, columns = self.shape
        return self._tensor.read(start * rows, stop * rows).reshape(-1, rows, columns)


class FirstOfEach(Derived):
    """The first rows of each matrix [count, rows, columns], as one matrix."""

    def __init__(self, tensor: Tensor, rows: int) -> None:
        super().__init__(tensor)
        self._rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix; of a tensor without such axes its own."""
        shape = self._tensor.shape
        return (shape[0] * min(self._rows, shape[1]), shape[2]) if len(shape) == _AXES_OF_EACH else shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        whole = self._tensor.read(0, self._tensor.shape[0])
        found = whole[:, : self._rows].reshape(-1, whole.shape[-1]) if whole.ndim == _AXES_OF_EACH else whole
        return np.ascontiguousarray(found[start:stop])


class ComputedRows(Derived):
    """A tensor of which each row is computed from the same row of another one; `shape` : if it is not the other's."""

    def __init__(
        self, tensor: Tensor, function: Callable[[FloatArray], FloatArray], shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(tensor)
        self._function, self._shape = function, shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what is computed."""
        return self._shape or self._tensor.shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        return self._function(self._tensor.read(start, stop))


class JoinedTensor(Tensor):
    """Several tensors of the same columns as one, their rows one below the other; `name` is for errors."""

    def __init__(self, name: str, parts: Sequence[Tensor]) -> None:
        self._comes_with(*parts)
        self._name, self._parts = name, parts

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole."""
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
            begin, end = max(start - first, 0), min(stop - first, part.shape[0])
            # Of no rows at all, the first part has the type.
            if begin < end or (start == stop and first == 0):
                yield part, begin, max(begin, end)
            first += part.shape[0]


class _PairTensor(Derived):
    """A tensor that is computed from two others; `name` is for errors."""

    def __init__(self, name: str, tensor: Tensor, other: Tensor) -> None:
        super().__init__(tensor, other)
        self._name, self._other = name, other

    def _misfit(self) -> CheckpointError:
        return CheckpointError(f"{self.path}: the parts of {self._name} do not fit together: download it again")


class ProductTensor(_PairTensor):
    """A matrix times another one, float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the product."""
        shape, factor = self._tensor.shape, self._other.shape
        if len(shape) != 2 or len(factor) != 2 or shape[1] != factor[0]:
            raise self._misfit()
        return shape[0], factor[1]

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``; sums in float64, so that others beside them leave them as they are."""
        return np.asarray(self._tensor.read(start, stop).astype(np.float64) @ self._columns, np.float32)

    @cached_property
    def _columns(self) -> NDArray[np.float64]:
        return self._other.read(0, self._other.shape[0]).astype(np.float64)


class ShiftedTensor(_PairTensor):
    """A matrix to each row of which the first row of another one is added, float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the matrix."""
        if self._other.shape[1:] != self._tensor.shape[1:]:
            raise self._misfit()
        return self._tensor.shape

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``."""
        return self._tensor.read(start, stop).astype(np.float32) + self._row

    @cached_property
    def _row(self) -> NDArray[np.float32]:
        return self._other.read(0, 1).astype(np.float32)


class FramesTensor(_PairTensor):
    """A convolution's weights for two frames, each of which is a tensor [D, C, p, p]: [D, C, 2, p, p], float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of both."""
        shape = self._tensor.shape
        if self._other.shape != shape:
            raise self._misfit()
        return *shape[:2], 2, *shape[2:]

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``."""
        frames = [tensor.read(start, stop).astype(np.float32) for tensor in (self._tensor, self._other)]
        return np.stack(frames, axis=2)


class FrameTensor(Derived):
    """One of two frames of a convolution's weights [3 D, 2, p, p], whose channels are rows: [D, 3, p, p]."""

    def __init__(self, tensor: Tensor, frame: int) -> None:
        super().__init__(tensor)
        self._frame = frame

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a frame; of a tensor without such axes its own."""
        rows, *axes = self._tensor.shape
        return (rows // _COLOURS, _COLOURS, *axes[1:]) if self._has_frames else self._tensor.shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        if not self._has_frames:
            return self._tensor.read(start, stop)
        rows = self._tensor.read(_COLOURS * start, _COLOURS * stop)[:, self._frame]
        return rows.reshape(stop - start, _COLOURS, *rows.shape[1:])

    @property
    def _has_frames(self) -> bool:
        rows, *axes = self._tensor.shape
        return len(axes) == 3 and axes[0] == 2 and rows % _COLOURS == 0


class ScaledRows(_PairTensor):
    """A tensor each row of which is multiplied by its number of a vector, float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        if self._other.shape != self._tensor.shape[:1]:
            raise self._misfit()
        return self._tensor.shape

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``."""
        rows, factors = (tensor.read(start, stop).astype(np.float32) for tensor in (self._tensor, self._other))
        return rows * factors.reshape(-1, *[1] * (rows.ndim - 1))


def part_of(tensor: Tensor, name: str, part: Part) -> Tensor:
    """Return the rows or columns of a tensor that `tinychat.models.tensors.whole_and_part` gave for a name."""
    shape = tensor.shape
    if len(shape) <= part.axis or shape[part.axis] != part.whole:
        wanted = f"{part.whole} {'columns' if part.axis else 'rows'}"
        raise CheckpointError(f"{tensor.path}: {name} is of a tensor with {wanted}: download the checkpoint again")
    size = part.stop - part.first
    if part.axis:
        columns = slice(part.first, part.stop)
        return ComputedRows(tensor, lambda rows: np.ascontiguousarray(rows[:, columns]), (shape[0], size))
    return TensorPart(tensor, part.first, (size, *shape[1:]))


class PatchRows(Derived):
    """A convolution's weights for patches, [D, C, p, p], or [D, p, p, C] of mlx, as rows of a linear: [D, C p p].

    Those for patches of several frames, [D, C, frames, p, p] or [D, frames, p, p, C], are summed: a still image is in
    all of them. channels_last : whether the linear reads patches by row, column and channel.
    """

    def __init__(self, tensor: Tensor, *, channels_last: bool = False) -> None:
        super().__init__(tensor)
        self._channels_last = channels_last

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rows; of a tensor without such axes its own."""
        shape = self._tensor.shape
        if len(shape) == _AXES_OF_FRAMES:
            shape = shape[:1] + (shape[2:] if self._is_of_mlx else (shape[1], *shape[3:]))
        return (shape[0], math.prod(shape[1:])) if len(shape) == _AXES_OF_FRAMES - 1 else shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``; float32 where they are sums."""
        rows = self._tensor.read(start, stop)
        if rows.ndim >= _AXES_OF_FRAMES - 1 and self._is_of_mlx:
            rows = np.moveaxis(rows, -1, 1)
        if rows.ndim == _AXES_OF_FRAMES:
            rows = np.add.accumulate(rows.astype(np.float32), axis=2)[:, :, -1]
        if rows.ndim == _AXES_OF_FRAMES - 1 and self._channels_last:
            rows = np.moveaxis(rows, 1, 3)
        return np.ascontiguousarray(rows).reshape(len(rows), -1)

    @property
    def _is_of_mlx(self) -> bool:
        height, width, colours = self._tensor.shape[-3:]
        return height == width != colours
