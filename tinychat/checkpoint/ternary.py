"""Checkpoints of weights that are -1, 0 and 1 times a scale of their tensor, as BitNet's: packed or not.

``quant_method: bitnet`` (github.com/huggingface/transformers, integrations/bitnet.py). Weights of four rows stand in a
byte, each in two bits, plus one: row ``n + q R`` of N = 4 R in bits 2q of row n, uint8 [R, K]. ``weight_scale`` [1]
multiplies them, or, where ``linear_class`` is not "autobitlinear", divides. In the mode "online" a file has the numbers
that training changed: the scale is their mean magnitude, and weights are these by the scale, rounded; of linears that
are called as Llama's are. Scales have 22 bits here (`group_codes.in_22_bits`).
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes, in_22_bits
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.rescaled import one_scale
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.models.passthrough import GROUPS, Form

METHOD = "bitnet"
_WEIGHT, _SCALE = ".weight", ".weight_scale"
_ROWS = 4  # of weights in a row of bytes
# What the linears of layers are called that are ternary; the mean magnitude of numbers is at least this.
_LINEARS = "_proj"
_LEAST = np.float32(1e-5)
_SLAB = 1024


class TernaryTensor(Tensor):
    """A weight of codes 0 to 2, which mean -1, 0 and 1, and of one scale."""

    @abstractmethod
    def _codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the codes of rows."""

    @abstractmethod
    def _find_scale(self) -> np.float32:
        """Return the scale."""

    @cached_property
    def _scale(self) -> np.float32:
        return in_22_bits(self._find_scale())

    @property
    def kind(self) -> str:
        """Name of the format."""
        return "BitNet"

    @property
    def form(self) -> Form | None:
        """Form of the codes; None where columns make no whole groups."""
        group = math.gcd(self.shape[1], GROUPS[-1]) if len(self.shape) == 2 else 1
        # One whole scale for all columns, times a factor for each row.
        return Form(2, "I8", group) if group in GROUPS[1:] else None

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1`` in float32."""
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            return (self._codes(start, stop).astype(np.float32) - np.float32(1)) * self._scale

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        codes = self._codes(start, stop)
        return GroupCodes(codes, np.ones((len(codes), 1), np.float32), zero=1).times(self._scale)


class PackedTernary(TernaryTensor):
    """One packed weight of a checkpoint; `stem` is its name without ``.weight``."""

    def __init__(self, tensors: Tensors, stem: str, divides: bool) -> None:
        self._packed, self._scale_tensor = tensors[f"{stem}{_WEIGHT}"], tensors[f"{stem}{_SCALE}"]
        self._comes_with(self._packed, self._scale_tensor)
        self._stem, self._divides = stem, divides

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of the weight."""
        found = self._packed.shape
        if len(found) != 2:
            raise self._damaged(_WEIGHT, f"has shape {list(found)}, not two axes")
        return _ROWS * found[0], found[1]

    def _find_scale(self) -> np.float32:
        scale = one_scale(self._scale_tensor, self._divides)
        if scale is None:
            raise self._damaged(_SCALE, "is not one number that a weight can have")
        return scale

    def _codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        packed = self._packed.read_integers()
        if packed.dtype != np.uint8:
            raise self._damaged(_WEIGHT, f"is {packed.dtype}, not of 8 bits")
        quarter, row = np.divmod(np.arange(start, stop), self.shape[0] // _ROWS)
        return np.asarray(packed[row] >> (2 * quarter)[:, None].astype(np.uint8) & 3, np.uint8)

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self._stem}{name} {what}: download the checkpoint again")


class RoundedTernary(TernaryTensor):
    """A weight of numbers that are rounded to -1, 0 and 1 times their mean magnitude."""

    def __init__(self, tensor: Tensor) -> None:
        self._comes_with(tensor)
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the numbers."""
        return self._tensor.shape

    def _find_scale(self) -> np.float32:
        rows, total = self.shape[0], 0.0
        for start in range(0, rows, _SLAB):
            slab = self._tensor.read(start, min(start + _SLAB, rows)).astype(np.float32)
            total += float(np.abs(slab).sum(dtype=np.float64))
        mean = total / math.prod(self.shape)
        if not mean < np.finfo(np.float32).max:
            raise CheckpointError(f"{self.path} holds weights that are not finite: download the checkpoint again")
        return max(np.float32(mean), _LEAST)

    def _codes(self, start: int, stop: int) -> NDArray[np.uint8]:
        rows = self._tensor.read(start, stop).astype(np.float32) * (np.float32(1) / self._scale)
        return np.asarray(np.clip(np.rint(rows), -1, 1) + 1, np.uint8)


def unpack_ternary(tensors: Tensors, section: Mapping[str, Any], source: str) -> Tensors:
    """Return a checkpoint's tensors with its ternary weights as such; section : its ``quantization_config``."""
    if section.get("use_rms_norm"):
        raise UnsupportedModelError(f"{source}: {METHOD} with use_rms_norm is not supported")
    found = {name: tensor for name, tensor in tensors.by_name.items() if not name.endswith(_SCALE)}
    if section.get("quantization_mode") == "online":
        left_out = section.get("modules_to_not_convert") or ()
        for name, tensor in found.items():
            stem = name.removesuffix(_WEIGHT)
            if name != stem and stem.endswith(_LINEARS) and not _is_named(stem, left_out):
                found[name] = RoundedTernary(tensor)
        return Tensors(tensors.folder, found)
    divides = section.get("linear_class") != "autobitlinear"
    for name in tensors.by_name.keys() - found.keys():
        stem = name.removesuffix(_SCALE)
        found[f"{stem}{_WEIGHT}"] = PackedTernary(tensors, stem, divides)
    return Tensors(tensors.folder, found)


def _is_named(stem: str, modules: object) -> bool:
    """Return whether one of some modules is this linear, or has it."""
    names = modules if isinstance(modules, list) else []
    return any(f".{name}." in f".{stem}." for name in names)
