"""Tensors of a checkpoint as the forward pass wants them, where a family stores them otherwise.

Rows may be in another order, and what the layer would multiply by or add is put into weights: so the same kernels
serve. Everything behind this, quantization, calibration and checks, sees only the result.
"""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensor_part import JoinedTensor, ProductTensor, part_of
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.passthrough import Form
from tinychat.models.tensors import whole_and_part

# Rows of this length or less are not brought to length 1: as torch.nn.functional.normalize has it.
SHORTEST = 1e-12


class AdjustedTensor(Tensor):
    """A tensor as ``scale * (offset + tensor[order])``; `unit_rows` are divided by their lengths, or rows cut.

    softplus : ``log(1 + exp(v))`` stands for each number of the tensor.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        order: NDArray[np.intp] | None = None,
        offset: float = 0.0,
        scale: float = 1.0,
        transposed: bool = False,
        unit_rows: bool = False,
        flattened: bool = False,
        cut: int = 1,
        softplus: bool = False,
    ) -> None:
        self.path, self._tensor = tensor.path, tensor
        self._order, self._offset, self._scale = order, offset, scale
        self._softplus = softplus
        self._transposed, self._unit_rows, self._flattened, self._cut = transposed, unit_rows, flattened, cut

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape after the adjustment."""
        shape = self._tensor.shape
        if self._flattened:
            return (math.prod(shape),)
        if self._cut > 1 and len(shape) == 2:
            return shape[0] * self._cut, shape[1] // self._cut
        return shape[::-1] if self._transposed else shape

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1``; float32 where they are computed."""
        rows = self._rows(start, stop)
        if self._softplus:
            rows = np.logaddexp(np.float32(0), rows.astype(np.float32))
        if self._unit_rows:
            wide = rows.astype(np.float32)
            lengths = np.sqrt(np.square(wide, dtype=np.float64).sum(axis=1, keepdims=True))
            return np.asarray(wide / np.maximum(lengths, SHORTEST), np.float32)
        if (self._offset, self._scale) == (0.0, 1.0):
            return rows
        adjusted: NDArray[np.float32] = np.float32(self._scale) * (np.float32(self._offset) + rows.astype(np.float32))
        return adjusted

    @property
    def kind(self) -> str:
        """Type of the stored tensor."""
        return self._tensor.kind

    @property
    def form(self) -> Form | None:
        """Form of the codes; None where numbers are computed from them."""
        is_computed = self._transposed or self._unit_rows or self._cut > 1 or (self._offset, self._scale) != (0.0, 1.0)
        return None if is_computed else self._tensor.form

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        if self._order is None:
            return self._tensor.read_codes(start, stop)
        return self._tensor.read_codes(0, self.shape[0]).rows(self._order[start:stop])

    def _rows(self, start: int, stop: int) -> FloatArray:
        whole = self._tensor.shape[0]
        if self._flattened:
            return self._tensor.read(0, whole).reshape(-1)[start:stop]
        if self._cut > 1:
            first, last = start // self._cut, -(-stop // self._cut)
            rows = self._tensor.read(first, last).reshape(-1, self.shape[1])
            return rows[start - first * self._cut : stop - first * self._cut]
        if self._transposed:
            return np.ascontiguousarray(self._tensor.read(0, whole).T[start:stop])
        # Tensors of another shape than the configuration's are refused later, by their shape.
        if self._order is None or whole != len(self._order):
            return self._tensor.read(start, stop)
        return self._tensor.read(0, whole)[self._order[start:stop]]


def other_names(name: str) -> list[str]:
    """Return the other names of a tensor: without the model's own, inside a larger model, without an ending."""
    names = [
        name.partition(".")[2],
        f"language_model.{name}",
        name.replace("model.", "model.language_model.", 1),
        name.replace("lm_head.", "embed_out."),
    ]
    return [*names, *(each.removesuffix(".weight") for each in (name, *names))]


def adjusted(tensors: Tensors, config: ModelConfig, done: Collection[str] = ()) -> Tensors:
    """Return a checkpoint's tensors, each adjusted for the family of `config`.

    `done` are the adjustments that the checkpoint's writer has made already: "order", "transposed", "offset".
    """
    changed = dict(tensors.by_name)

    def find(name: str) -> Tensor | None:
        """Return a tensor under whichever name it has."""
        if name in tensors.by_name:
            return tensors.by_name[name]
        stem, _, ending = name.rpartition(".")
        if "@" in stem:
            rows, factor = (find(f"{source}.{ending}") for source in stem.split("@"))
            return ProductTensor(name, rows, factor) if rows and factor else None
        if stem.endswith(".T"):
            turned = find(f"{stem.removesuffix('.T')}.{ending}")
            return AdjustedTensor(turned, transposed=True) if turned else None
        if "+" in stem:
            parts = [find(f"{source}.{ending}") for source in stem.split("+")]
            return None if None in parts else JoinedTensor(name, [part for part in parts if part is not None])
        whole, part = whole_and_part(name)
        found = next((other for other in (whole, *other_names(whole)) if other in tensors.by_name), None)
        if found is None:
            return None
        return part_of(tensors.by_name[found], name, part) if part else tensors.by_name[found]

    def adjust(name: str, **adjustment: Any) -> None:
        """Adjust a tensor; `adjustment` is empty where it stays as it is."""
        tensor = find(name)
        if tensor is not None:
            changed[name] = AdjustedTensor(tensor, **adjustment) if adjustment else tensor

    for linear in linears(config):
        turned = {key: True for key in ("transposed", "unit_rows") if getattr(linear, key) and key not in done}
        cut = {"cut": linear.cut} if linear.cut > 1 else {}
        orders = (linear.order if "order" not in done else ()) or (None,) * len(linear.sources)
        scales = linear.scales or (linear.scale,) * len(linear.sources)
        for shard in range(linear.shards):
            for source, order, scale in zip(linear.names(shard), orders, scales):
                rows: dict[str, Any] = {}
                if order is not None or scale != 1:
                    rows = {"order": order, "scale": scale}
                adjust(f"{source}.weight", **rows, **turned, **cut)
                adjust(f"{source}.bias", **rows)
    for norm in norms(config):
        scaled = {"scale": norm.scale} if norm.scale != 1 else {}
        offset = {"offset": norm.offset} if norm.offset and "offset" not in done else {}
        flattened = {key: True for key in ("flattened", "softplus") if getattr(norm, key)}
        for source in norm.sources:
            adjust(f"{source}.weight", **scaled, **offset, **flattened)
            adjust(f"{source}.bias", **scaled)
    for table in tables(config):
        adjust(f"{table.source}.weight")
    return Tensors(tensors.folder, changed)
