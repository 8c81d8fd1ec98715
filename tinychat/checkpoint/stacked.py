"""Weights of experts that a checkpoint has in one tensor for all, each under a name of its own.

gpt-oss stacks them as [E, K, N], biases as [E, N]; or has them in MXFP4, where 32 columns share a power of two:
``_blocks`` uint8 [E, N, K/32, 16], two codes to a byte, the lower one first, and ``_scales`` uint8 [E, N, K/32], the
exponent and 127 (Open Compute Project, 2023,
https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf). An expert is read only when it
is asked for, one at a time.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import TensorFile, Tensors
from tinychat.errors import CheckpointError
from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig

# What the codes stand for: a sign, two bits of exponent, one of fraction.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([E2M1, -E2M1])
EXPONENT_BIAS = 127
BLOCK = 32


class StackedTensor:
    """One expert's weight or bias, of a tensor of all.

    Parameters
    ----------
    file : TensorFile
    stem : str
        The tensor's name there.
    expert : int
    """

    def __init__(self, file: TensorFile, stem: str, expert: int) -> None:
        self.path, self._file, self._stem, self._expert = file.path, file, stem, expert

    def names(self) -> frozenset[str]:
        """Return the names of the file's tensors."""
        return self._file.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape [N, K] of a weight, or [N] of a bias."""
        experts, *axes = self._file.shape(self._stem)
        if self._expert >= experts:
            raise CheckpointError(f"{self.path}: {self._stem} has {experts} experts: download the checkpoint again")
        return tuple(axes[::-1])

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``."""
        self.shape(name)
        return np.ascontiguousarray(self._file.read(self._stem, self._expert, self._expert + 1)[0].T[start:stop])


class Mxfp4Tensor:
    """One expert's weight in MXFP4.

    Parameters
    ----------
    tensors : Tensors
    stem : str
        The name of the tensors of all experts, without ``_blocks`` and ``_scales``.
    expert : int
    """

    def __init__(self, tensors: Tensors, stem: str, expert: int) -> None:
        self._tensors, self._stem, self._expert = tensors, stem, expert
        self.path: Path = tensors.files[f"{stem}_blocks"].path

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return self._tensors.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape [N, K].

        Raises
        ------
        CheckpointError
            If codes and scales do not fit together.
        """
        blocks, scales = (self._tensors.shape(f"{self._stem}_{part}") for part in ("blocks", "scales"))
        if len(blocks) != 4 or blocks[3] != BLOCK // 2 or scales != blocks[:3] or self._expert >= blocks[0]:
            raise CheckpointError(f"{self.path}: {self._stem} has blocks and scales that do not fit: download it again")
        return blocks[1], blocks[2] * BLOCK

    def kind(self, name: str) -> str:
        """Return the format's name."""
        return "MXFP4"

    def read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1``; what is not finite is reported by whoever uses it."""
        _, K = self.shape(name)
        blocks, scales = (self._bytes(part)[self._expert, start:stop] for part in ("blocks", "scales"))
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.ldexp(VALUES[codes], scales[..., None].astype(np.int32) - EXPONENT_BIAS)
        return np.asarray(values.reshape(len(scales), K), np.float32)

    def _bytes(self, part: str) -> NDArray[np.uint8]:
        found = self._tensors.read_integers(f"{self._stem}_{part}")
        if found.dtype != np.uint8:
            raise CheckpointError(f"{self.path}: {self._stem}_{part} does not hold bytes: download it again")
        return found


def unstacked(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Return a checkpoint's tensors with each expert's under a name of its own, where they are stacked."""
    files = dict(tensors.files)
    for linear in linears(config):
        for shard in range(linear.shards if linear.experts else 0):
            expert = shard % linear.experts
            for name in linear.names(shard):
                stem = name.replace(f".experts.{expert}.", ".experts.")
                if stem in tensors.files:
                    files.setdefault(f"{name}.weight", StackedTensor(tensors.files[stem], stem, expert))
                elif f"{stem}_blocks" in tensors.files and f"{stem}_scales" in tensors.files:
                    files.setdefault(f"{name}.weight", Mxfp4Tensor(tensors, stem, expert))
                if f"{stem}_bias" in tensors.files:
                    bias = StackedTensor(tensors.files[f"{stem}_bias"], f"{stem}_bias", expert)
                    files.setdefault(f"{name}.bias", bias)
    return Tensors(tensors.folder, files)
