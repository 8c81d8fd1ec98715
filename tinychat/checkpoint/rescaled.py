"""Tensors whose rows are stored without a number that they are multiplied by."""

import math

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes, in_18_bits
from tinychat.checkpoint.tensors import Derived, Tensor
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form


def one_scale(tensor: Tensor, divides: bool) -> np.float32 | None:
    """Return a tensor's one number, or 1 by it where it `divides`; None if no weight can have that scale."""
    if math.prod(tensor.shape) != 1:
        return None
    scale: np.float32 = tensor.read(0, 1).astype(np.float32).reshape(-1)[0]
    with np.errstate(all="ignore"):
        scale = np.float32(1) / scale if divides else scale
    return scale if np.isfinite(scale) and scale != 0 else None


class RescaledTensor(Derived):
    """A matrix, or those of all experts, times a number of each, in 18 bits; `scales` has one number or one of each."""

    def __init__(self, tensor: Tensor, scales: Tensor, name: str) -> None:
        super().__init__(tensor, scales)
        self._scales, self._name = scales, name

    @property
    def form(self) -> Form | None:
        """Form of the tensor's codes."""
        return self._tensor.form

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1`` in float32."""
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            return np.asarray(self._tensor.read(start, stop).astype(np.float32) * self._factors(start, stop)[:, None])

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        found = self._tensor.read_codes(start, stop)
        factors = np.ones((stop - start, 1, 2), np.float32) if found.factors is None else found.factors
        return found._replace(factors=factors * self._factors(start, stop)[:, None, None])

    def _factors(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the number of each row."""
        experts, rows = self.shape[:2] if len(self.shape) == 3 else (1, self.shape[0])
        if self._scales.shape not in ((1,), (experts,)):
            what = f"{self._name} has shape {list(self._scales.shape)}, expected {[experts]}"
            raise CheckpointError(f"{self.path}: {what}: download the file again")
        numbers = in_18_bits(self._scales.read(0, self._scales.shape[0]).astype(np.float32))
        return np.broadcast_to(numbers, (experts,))[np.arange(start, stop) // rows]
