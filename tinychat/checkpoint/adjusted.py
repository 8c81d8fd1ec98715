"""Tensors of a checkpoint as the forward pass wants them, where a family stores them otherwise.

Rows may be in another order, and what the layer would multiply by or add is put into weights: so the same kernels
serve. Everything behind this, quantization, calibration and checks, sees only the result.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensor_part import (
    ComputedRows,
    JoinedTensor,
    ProductTensor,
    ScaledRows,
    ShiftedTensor,
    part_of,
)
from tinychat.checkpoint.tensors import Derived, Tensor, Tensors
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.config import ModelConfig
from tinychat.models.passthrough import Form
from tinychat.models.tensors import whole_and_part

# Rows of this length or less are not brought to length 1: as torch.nn.functional.normalize has it.
SHORTEST = 1e-12
_POWER_OF_TWO = 0.5  # its mantissa


def _unit_length(rows: FloatArray) -> FloatArray:
    """Return rows divided by their lengths, float32."""
    wide = rows.astype(np.float32)
    lengths = np.sqrt(np.square(wide, dtype=np.float64).sum(axis=1, keepdims=True))
    return np.asarray(wide / np.maximum(lengths, SHORTEST), np.float32)


# Of the norms of `tinychat.models.tensors`, and of rows of linears.
FUNCTIONS: Mapping[str, Callable[[FloatArray], FloatArray]] = {
    "softplus": lambda values: np.logaddexp(np.float32(0), values.astype(np.float32)),
    "exp": lambda values: np.exp(values.astype(np.float64)).astype(np.float32),
    "abs": lambda values: np.abs(values.astype(np.float32)),
    "square": lambda values: np.square(values.astype(np.float32)),
    "unit length": _unit_length,
}


class AdjustedTensor(Derived):
    """A tensor as ``scale * (offset + tensor[order])``.

    Instead of reordered, it may be `transposed`, `flattened` to one axis, or each stored row `cut` into so many.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        order: NDArray[np.intp] | None = None,
        offset: float = 0.0,
        scale: float = 1.0,
        transposed: bool = False,
        flattened: bool = False,
        cut: int = 1,
    ) -> None:
        super().__init__(tensor)
        self._order, self._offset, self._scale = order, offset, scale
        self._transposed, self._flattened, self._cut = transposed, flattened, cut

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
        if (self._offset, self._scale) == (0.0, 1.0):
            return rows
        adjusted: NDArray[np.float32] = np.float32(self._scale) * (np.float32(self._offset) + rows.astype(np.float32))
        return adjusted

    @property
    def differs(self) -> bool:
        """Whether anything is not as in the stored tensor."""
        return self._order is not None or self._flattened or self._is_computed

    @property
    def _is_computed(self) -> bool:
        return self._transposed or self._cut > 1 or (self._offset, self._scale) != (0.0, 1.0)

    @property
    def form(self) -> Form | None:
        """Form of the codes; None where numbers are computed from them: times a power of two they are the same."""
        is_power = math.frexp(self._scale)[0] == _POWER_OF_TWO
        return None if self._transposed or self._cut > 1 or self._offset or not is_power else self._tensor.form

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        if self._order is None:
            rows = self._tensor.read_codes(start, stop)
        else:
            rows = self._tensor.read_codes(0, self.shape[0]).rows(self._order[start:stop])
        return rows if self._scale == 1 else rows.times(np.float32(self._scale))

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


def stored_name(tensors: Tensors, name: str) -> str | None:
    """Return the name that a checkpoint has for a tensor; None where it has no such tensor.

    It may lack the model's own name or the ending, or be that of a part of a larger model.
    """
    names = [
        name,
        name.partition(".")[2],
        *(f"{whole}.{name}" for whole in ("language_model", "model.language_model", "thinker")),
        name.replace("model.", "language_model.", 1),
        *(name.replace("model.", f"model.{part}.", 1) for part in ("language_model", "text_model")),
        name.replace("lm_head.", "embed_out."),
    ]
    if "LayerNorm." in name:
        # As BERT's first files have them.
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        names += [old, old.partition(".")[2]]
    # The last is of Phi-4-multimodal, beside changes for images and sound.
    names += [each.removesuffix(".weight") for each in names] + [name.replace(".weight", ".base_layer.weight")]
    return next((each for each in names if each in tensors.by_name), None)


def _find(tensors: Tensors, name: str) -> Tensor | None:
    """Return a tensor by one of the names of `models.tensors`, which may be made of several; None without it."""
    if name in tensors.by_name:
        return tensors.by_name[name]
    stem, _, ending = name.rpartition(".")
    if "@" in stem:
        rows, factor = (_find(tensors, f"{source}.{ending}") for source in stem.split("@"))
        return ProductTensor(name, rows, factor) if rows and factor else None
    if stem.endswith(".T"):
        turned = _find(tensors, f"{stem.removesuffix('.T')}.{ending}")
        return AdjustedTensor(turned, transposed=True) if turned else None
    if "+" in stem:
        parts = [_find(tensors, f"{source}.{ending}") for source in stem.split("+")]
        return None if None in parts else JoinedTensor(name, [part for part in parts if part is not None])
    if "^" in stem:
        rows, other = (_find(tensors, f"{source}.{ending}") for source in stem.split("^"))
        return ShiftedTensor(name, rows, other) if rows and other else None
    if "*" in stem:
        source, _, vector = stem.rpartition("*")
        rows, factors = _find(tensors, f"{source}.{ending}"), _find(tensors, f"{vector}.weight")
        return ScaledRows(name, rows, factors) if rows and factors else None
    whole, part = whole_and_part(name)
    stored = stored_name(tensors, whole)
    if stored is None:
        return None
    return part_of(tensors.by_name[stored], name, part) if part else tensors.by_name[stored]


def adjusted(tensors: Tensors, config: ModelConfig, done: Collection[str] = ()) -> Tensors:
    """Return a checkpoint's tensors, each adjusted for the family of `config`.

    `done` are the adjustments that the checkpoint's writer has made already: "order", "transposed", "offset".
    """
    changed = dict(tensors.by_name)

    def adjust(name: str, function: str = "", **adjustment: Any) -> None:
        tensor = _find(tensors, name)
        if tensor is not None:
            tensor = ComputedRows(tensor, FUNCTIONS[function]) if function else tensor
            found = AdjustedTensor(tensor, **adjustment)
            changed[name] = found if found.differs else tensor

    for linear in linears(config):
        transposed = linear.transposed and "transposed" not in done
        orders = (linear.order if "order" not in done else ()) or (None,) * len(linear.sources)
        scales = linear.scales or (linear.scale,) * len(linear.sources)
        for shard in range(linear.shards):
            for source, order, scale in zip(linear.names(shard), orders, scales):
                function = "unit length" if linear.unit_rows else ""
                weight: dict[str, Any] = {"transposed": transposed, "cut": linear.cut}
                adjust(f"{source}.weight", function, order=order, scale=scale, **weight)
                adjust(f"{source}.bias", order=order, scale=scale)
    for norm in norms(config):
        offset = 0.0 if "offset" in done else norm.offset
        for source in norm.sources:
            adjust(f"{source}.weight", norm.function, offset=offset, scale=norm.scale, flattened=norm.flattened)
            adjust(f"{source}.bias", scale=norm.scale)
    for table in tables(config):
        adjust(f"{table.source}.weight")
    return Tensors(tensors.folder, changed)
