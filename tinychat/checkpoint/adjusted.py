"""Tensors of a checkpoint as the forward pass wants them, where a family keeps them otherwise.

Rows may stand in another order, and what the layer would multiply by or add is put into weights: so the same kernels
serve. Everything behind this, quantization, calibration and checks, sees only the result.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import CodedFile, TensorFile, Tensors, kind_of
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.passthrough import Form

# Rows of this length or less are not brought to length 1: as torch.nn.functional.normalize has it.
SHORTEST = 1e-12


@dataclass
class AdjustedTensor:
    """A tensor as ``scale * (offset + tensor[order])``, maybe transposed, maybe by another name: a `TensorFile` of one.

    Or its rows are divided by their lengths.

    Attributes
    ----------
    path : Path
        For errors.
    file : TensorFile
        Where it is.
    order : int array or None
        Which row of the file's each row is.
    offset, scale : float
    transposed, unit_rows, flattened : bool
    name : str or None
        What the file calls it, if that is something else.
    """

    path: Path
    file: TensorFile
    order: NDArray[np.intp] | None = None
    offset: float = 0.0
    scale: float = 1.0
    transposed: bool = False
    unit_rows: bool = False
    flattened: bool = False
    name: str | None = None

    def names(self) -> frozenset[str]:
        """Return the names of the file's tensors."""
        return self.file.names()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape."""
        shape = self.file.shape(self.name or name)
        if self.flattened:
            return (math.prod(shape),)
        return shape[::-1] if self.transposed else shape

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``; float32 where they are computed."""
        rows = self._rows(self.name or name, start, stop)
        if self.unit_rows:
            wide = rows.astype(np.float32)
            lengths = np.sqrt(np.square(wide, dtype=np.float64).sum(axis=1, keepdims=True))
            return np.asarray(wide / np.maximum(lengths, SHORTEST), np.float32)
        if (self.offset, self.scale) == (0.0, 1.0):
            return rows
        adjusted: NDArray[np.float32] = np.float32(self.scale) * (np.float32(self.offset) + rows.astype(np.float32))
        return adjusted

    def kind(self, name: str) -> str:
        """Return what the format calls the type of the tensor."""
        return kind_of(self.file, self.name or name)

    def form(self, name: str) -> Form | None:
        """Return how the codes of the tensor can be kept; None where its numbers are computed anew."""
        is_changed = self.transposed or self.unit_rows or (self.offset, self.scale) != (0.0, 1.0)
        return None if is_changed or not isinstance(self.file, CodedFile) else self.file.form(self.name or name)

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` of a tensor that has a form, as codes."""
        if not isinstance(self.file, CodedFile):
            raise TypeError(f"{name} has no codes")
        if self.order is None:
            return self.file.read_codes(self.name or name, start, stop)
        return self.file.read_codes(self.name or name, 0, self.shape(name)[0]).rows(self.order[start:stop])

    def _rows(self, name: str, start: int, stop: int) -> FloatArray:
        whole = self.file.shape(name)[0]
        if self.flattened:
            return self.file.read(name, 0, whole).reshape(-1)[start:stop]
        if self.transposed:
            return np.ascontiguousarray(self.file.read(name, 0, whole).T[start:stop])
        # Tensors of another shape than the configuration's are refused later, by their shape.
        if self.order is None or whole != len(self.order):
            return self.file.read(name, start, stop)
        return self.file.read(name, 0, whole)[self.order[start:stop]]


def other_names(name: str) -> list[str]:
    """Return what else checkpoints call a tensor: without the model's own name in front, or inside a larger model.

    One that is no layer's weight may have no ending (gpt-oss' sinks).
    """
    return [
        name.partition(".")[2],
        f"language_model.{name}",
        name.replace("model.", "model.language_model.", 1),
        name.replace("lm_head.", "embed_out."),
        name.removesuffix(".weight"),
    ]


def adjusted(tensors: Tensors, config: ModelConfig, done: Collection[str] = ()) -> Tensors:
    """Return a checkpoint's tensors, each adjusted as the family of `config` says.

    done : what whoever wrote the checkpoint has done already: "order", "transposed", "offset".
    """
    changed = dict(tensors.files)

    def find(name: str, **how: Any) -> None:
        known = [other for other in (name, *other_names(name)) if other in tensors.files]
        if known and (known[0] != name or how):
            file = tensors.files[known[0]]
            changed[name] = AdjustedTensor(file.path, file, name=known[0], **how)

    for linear in linears(config):
        turned: dict[str, Any] = {
            key: True for key in ("transposed", "unit_rows") if getattr(linear, key) and key not in done
        }
        orders = (linear.order if "order" not in done else ()) or (None,) * len(linear.sources)
        for shard in range(linear.shards):
            for source, order in zip(linear.names(shard), orders):
                how = {} if order is None and linear.scale == 1 else {"order": order, "scale": linear.scale}
                find(f"{source}.weight", **how, **turned)
                find(f"{source}.bias", **how)
    for norm in norms(config):
        for source in norm.sources:
            scale = {} if norm.scale == 1 else {"scale": norm.scale}
            offset = norm.offset if "offset" not in done else 0.0
            flattened = {"flattened": True} if norm.flattened else {}
            find(f"{source}.weight", **scale, **({"offset": offset} if offset else {}), **flattened)
            find(f"{source}.bias", **scale)
    for table in tables(config):
        find(f"{table.source}.weight")
    return Tensors(tensors.folder, changed)
