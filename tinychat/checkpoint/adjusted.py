"""Tensors of a checkpoint as the forward pass wants them, where a family keeps them otherwise.

Rows may stand in another order, and what the layer would multiply by or add is put into weights: so the same kernels
serve. Everything behind this, quantization, calibration and checks, sees only the result.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import CodedFile, TensorFile, Tensors, kind_of
from tinychat.models.architectures import linears, norms
from tinychat.models.config import ModelConfig
from tinychat.models.kept import Form


@dataclass
class AdjustedTensor:
    """A tensor as ``scale * (offset + tensor[order])``; a `TensorFile` of one.

    Attributes
    ----------
    path : Path
        For errors.
    file : TensorFile
        Where it is.
    order : int array or None
        Which row of the file's each row is.
    offset, scale : float
    """

    path: Path
    file: TensorFile
    order: NDArray[np.intp] | None = None
    offset: float = 0.0
    scale: float = 1.0

    def names(self) -> frozenset[str]:
        """Return the names of the file's tensors."""
        return self.file.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape."""
        return self.file.shape(name)

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``; float32 where they are computed."""
        if self.order is None:
            rows = self.file.read(name, start, stop)
        else:
            whole = self.file.shape(name)[0]
            # Tensors of another shape than the configuration's are refused later, by their shape.
            if whole != len(self.order):
                return self.file.read(name, start, stop)
            rows = self.file.read(name, 0, whole)[self.order[start:stop]]
        if (self.offset, self.scale) == (0.0, 1.0):
            return rows
        adjusted: NDArray[np.float32] = np.float32(self.scale) * (np.float32(self.offset) + rows.astype(np.float32))
        return adjusted

    def kind(self, name: str) -> str:
        """Return what the format calls the type of the tensor."""
        return kind_of(self.file, name)

    def form(self, name: str) -> Form | None:
        """Return how the codes of the tensor can be kept; None where its numbers are computed anew."""
        is_changed = (self.offset, self.scale) != (0.0, 1.0)
        return None if is_changed or not isinstance(self.file, CodedFile) else self.file.form(name)

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form, as codes."""
        if not isinstance(self.file, CodedFile):
            raise TypeError(f"{name} has no codes")
        if self.order is None:
            return self.file.read_codes(name, start, stop)
        return self.file.read_codes(name, 0, self.file.shape(name)[0]).rows(self.order[start:stop])


def adjusted(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Return a checkpoint's tensors, each adjusted as the family of `config` says."""
    changed = dict(tensors.files)

    def change(name: str, order: NDArray[np.intp] | None = None, offset: float = 0.0, scale: float = 1.0) -> None:
        if name in changed:
            changed[name] = AdjustedTensor(changed[name].path, changed[name], order, offset, scale)

    for linear in linears(config):
        for source, order in zip(linear.sources, linear.order or (None,) * len(linear.sources)):
            if order is not None or linear.scale != 1:
                for layer in range(linear.layers or 1):
                    for part in ("weight", "bias"):
                        change(f"{source.format(layer)}.{part}", order, scale=linear.scale)
    for norm in norms(config):
        if (norm.offset, norm.scale) != (0.0, 1.0):
            for layer in range(norm.layers or 1):
                change(f"{norm.source.format(layer)}.weight", offset=norm.offset, scale=norm.scale)
                change(f"{norm.source.format(layer)}.bias", scale=norm.scale)
    return Tensors(tensors.folder, changed)
