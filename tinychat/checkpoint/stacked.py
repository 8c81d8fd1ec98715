"""Weights of experts that a checkpoint has in one tensor for all, each under a name of its own.

gpt-oss stacks them as [E, K, N], biases as [E, N]; or has them in MXFP4, where 32 columns share a power of two:
``_blocks`` uint8 [E, N, K/32, 16], two codes to a byte, the lower one first, and ``_scales`` uint8 [E, N, K/32], the
exponent and 127 (Open Compute Project, 2023,
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf). An expert is read only when it
is asked for, one at a time.
"""

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import CheckpointError
from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig

# Values of the codes: a sign, two bits of exponent, one of fraction.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([E2M1, -E2M1])
EXPONENT_BIAS = 127
BLOCK = 32


class StackedTensor(Tensor):
    """One expert's weight or bias, of a tensor of all; `stem` is its name, for errors."""

    def __init__(self, tensor: Tensor, stem: str, expert: int) -> None:
        self.path, self._tensor, self._stem, self._expert = tensor.path, tensor, stem, expert

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [N, K] of a weight, or [N] of a bias."""
        experts, *axes = self._tensor.shape or (0,)
        if self._expert >= experts:
            raise CheckpointError(f"{self.path}: {self._stem} has {experts} experts: download the checkpoint again")
        return tuple(axes[::-1])

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        _ = self.shape
        return np.ascontiguousarray(self._tensor.read(self._expert, self._expert + 1)[0].T[start:stop])


class Mxfp4Tensor(Tensor):
    """One expert's weight in MXFP4; `stem` is the name of all experts' tensors without ``_blocks`` and ``_scales``."""

    kind = "MXFP4"

    def __init__(self, tensors: Tensors, stem: str, expert: int) -> None:
        self._blocks, self._scales = tensors[f"{stem}_blocks"], tensors[f"{stem}_scales"]
        self.path, self._stem, self._expert = self._blocks.path, stem, expert

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [N, K]."""
        blocks, scales = self._blocks.shape, self._scales.shape
        if len(blocks) != 4 or blocks[3] != BLOCK // 2 or scales != blocks[:3] or self._expert >= blocks[0]:
            raise CheckpointError(f"{self.path}: {self._stem} has blocks and scales that do not fit: download it again")
        return blocks[1], blocks[2] * BLOCK

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``; the caller reports numbers that are not finite."""
        _, K = self.shape
        blocks, scales = (self._bytes(each)[self._expert, start:stop] for each in (self._blocks, self._scales))
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.ldexp(VALUES[codes], scales[..., None].astype(np.int32) - EXPONENT_BIAS)
        return np.asarray(values.reshape(len(scales), K), np.float32)

    def _bytes(self, tensor: Tensor) -> NDArray[np.uint8]:
        found = tensor.read_integers()
        if found.dtype != np.uint8:
            raise CheckpointError(f"{self.path}: {self._stem} does not hold bytes: download it again")
        return found


def unstacked(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Return a checkpoint's tensors with each expert's under a name of its own, where they are stacked."""
    found = dict(tensors.by_name)
    for linear in linears(config):
        for shard in range(linear.shards if linear.experts else 0):
            expert = shard % linear.experts
            for name in linear.names(shard):
                stem = name.replace(f".experts.{expert}.", ".experts.")
                if stem in tensors.by_name:
                    found.setdefault(f"{name}.weight", StackedTensor(tensors[stem], stem, expert))
                elif {f"{stem}_blocks", f"{stem}_scales"} <= tensors.by_name.keys():
                    found.setdefault(f"{name}.weight", Mxfp4Tensor(tensors, stem, expert))
                if (bias := f"{stem}_bias") in tensors.by_name:
                    found.setdefault(f"{name}.bias", StackedTensor(tensors[bias], bias, expert))
    return Tensors(tensors.folder, found)
