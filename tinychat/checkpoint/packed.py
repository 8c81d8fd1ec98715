"""Checkpoints whose weights are codes of four or eight bits already: GPTQ, AWQ, compressed-tensors and mlx.

Each packs codes into 32-bit numbers, the lowest bits first, and has a scale for each row and group of columns:

========================= ===================================================== ==============================
format                    tensors of a weight [N, K], with groups [N, G]        weight
========================= ===================================================== ==============================
gptq                      qweight [K/8, N], qzeros [G, N/8], scales [G, N],     scale * (code - zero)
                          g_idx [K]: the group of each column
awq                       qweight [K, N/8], qzeros [G, N/8], scales [G, N]      scale * (code - zero)
compressed-tensors        weight_packed [N, K/8], weight_scale [N, G],          scale * (code - zero)
(pack-quantized)          weight_zero_point [N/8, G], weight_shape [2]
mlx                       weight [N, K/8], scales [N, G], biases [N, G]         scale * code + bias
========================= ===================================================== ==============================

GPTQ's first version stores each zero less one (github.com/ModelCloud/GPTQModel). AWQ interleaves the eight columns of a
number (github.com/casper-hansen/AutoAWQ, awq/utils/packing_utils.py). Without zeros, compressed-tensors means 8, the
middle of the codes (github.com/neuralmagic/compressed-tensors). The layout of mlx is that of its `quantize`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.tensors import TensorFile, Tensors
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.passthrough import GROUPS, Form

# Packed experts alone: `checkpoint.stacked` reads them.
STACKED_METHOD = "mxfp4"
# The column that each four bits of AWQ's numbers are of.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Tensors of whole numbers that hold no codes.
_PLAIN_INTEGERS = ("weight_shape", "g_idx", "weight_g_idx")
Integers = NDArray[np.uint8]


@dataclass(frozen=True)
class Packing:
    """How a checkpoint says that its weights are packed.

    Attributes
    ----------
    format : {"gptq", "awq", "compressed-tensors", "mlx"}
    bits : {4, 8}
    group : int
        Columns that share a scale; 0 for whole rows.
    zeros_less_one : bool
        Whether stored zeros are one less than those that are meant.
    """

    format: str
    bits: int
    group: int
    zeros_less_one: bool = False


def read_packing(config: Mapping[str, Any], source: str) -> Packing | None:
    """Return how the weights of a checkpoint are packed, as its ``config.json`` says; None where they are not.

    Raises
    ------
    UnsupportedModelError
        If the method, or a setting of it, is not implemented.
    """
    section = config.get("quantization_config") or config.get("quantization")
    if not isinstance(section, dict) or not section or section.get("quant_method") == STACKED_METHOD:
        return None

    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{source}: {what} is not supported; use the unquantized checkpoint")

    method = section.get("quant_method", "mlx")
    settings: Mapping[str, Any] = section
    if method == "compressed-tensors":
        settings = _only_group(section, refuse)
    bits, group = settings.get("num_bits", settings.get("bits")), settings.get("group_size")
    if method not in ("gptq", "awq", "compressed-tensors", "mlx"):
        raise refuse(f"quantization by {one_line(str(method), 40)}")
    if type(bits) is not int or bits not in ((4,) if method == "awq" else (4, 8)):
        raise refuse(f"{method} with {one_line(repr(bits), 20)} bits")
    if group in (None, -1) and method in ("gptq", "compressed-tensors"):
        group = 0
    if type(group) is not int or group < 0 or (group == 0 and method in ("awq", "mlx")):
        raise refuse(f"{method} with groups of {one_line(repr(group), 20)}")
    if method == "awq" and str(section.get("version", "gemm")).lower() != "gemm":
        raise refuse(f"awq in its version {one_line(str(section['version']), 20)}")
    if section.get("dynamic"):
        raise refuse(f"{method} with other settings for some weights")
    if method == "mlx" and section.get("mode", "affine") != "affine":
        raise refuse(f"mlx in its mode {one_line(str(section['mode']), 20)}")
    layout = section.get("checkpoint_format", "gptq")
    if method == "gptq" and layout not in ("gptq", "gptq_v2"):
        raise refuse(f"gptq in the format {one_line(str(layout), 20)}")
    return Packing(method, bits, group, method == "gptq" and layout == "gptq")


def _only_group(section: Mapping[str, Any], refuse: Callable[[str], UnsupportedModelError]) -> Mapping[str, Any]:
    """Return what compressed-tensors says of all packed weights."""
    groups = section.get("config_groups")
    entries = [*groups.values()] if isinstance(groups, dict) else []
    weights = entries[0].get("weights") if len(entries) == 1 and isinstance(entries[0], dict) else None
    if section.get("format") != "pack-quantized" or not isinstance(weights, dict) or weights.get("type") != "int":
        raise refuse(f"compressed-tensors in the format {one_line(str(section.get('format')), 40)}")
    if entries[0].get("input_activations") or weights.get("strategy") not in ("group", "channel"):
        raise refuse("compressed-tensors with other than weights in groups")
    return weights


class PackedWeight:
    """One weight of such a checkpoint; `read` gives what its codes stand for.

    Parameters
    ----------
    tensors : Tensors
        Those of the files.
    stem : str
        The weight's name without ``.weight``.
    packing : Packing
    """

    def __init__(self, tensors: Tensors, stem: str, packing: Packing) -> None:
        self._tensors, self._stem, self._packing = tensors, stem, packing
        self.path = tensors.folder

    def names(self) -> frozenset[str]:
        """Return the weight's name."""
        return frozenset([f"{self._stem}.weight"])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return its shape [N, K]."""
        return self._shape

    def kind(self, name: str) -> str:
        """Return what the format is called."""
        return {"gptq": "GPTQ", "awq": "AWQ"}.get(self._packing.format, self._packing.format)

    def read(self, name: str, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1`` in float32."""
        codes, scales, offsets = self._codes(start, stop), self._scales[start:stop], self._biases
        groups = self._groups
        columns = np.arange(self._shape[1]) // self._columns if groups is None else groups
        values = codes.astype(np.float32)
        if offsets is not None:
            numbers: FloatArray = values * scales[:, columns] + offsets[start:stop][:, columns]
            return numbers
        numbers = (values - self._zeros[start:stop][:, columns]) * scales[:, columns]
        return numbers

    def form(self, name: str) -> Form | None:
        """Return how the codes can be kept; None where their groups are not those of neighbouring columns."""
        group = math.gcd(self._columns, GROUPS[-1])
        if group not in GROUPS or self._groups is not None:
            return None
        numbers = "F16" if self._scales_dtype == "float16" else "F32"
        if self._biases is not None:
            # Codes of eight bits are stored around 128: that makes offsets which float16 does not hold.
            return Form(self._packing.bits, "F32" if self._packing.bits == 8 else numbers, group, offsets=True)
        if self._is_symmetric:
            return Form(self._packing.bits, numbers, group)
        # Zeros are whole: with the scale as a factor, they are as exact as the codes.
        return Form(self._packing.bits, "I8" if self._packing.bits == 4 else "F16", group, group, offsets=True)

    def read_codes(self, name: str, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes, in groups of the form's size."""
        times = self._columns // math.gcd(self._columns, GROUPS[-1])
        codes = self._codes(start, stop)

        def spread(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.repeat(numbers[start:stop], times, axis=1)

        scales = spread(self._scales)
        if self._biases is not None:
            return GroupCodes(codes, scales, spread(self._biases))
        if self._is_symmetric:
            return GroupCodes(codes, scales, zero=self._middle)
        factors = np.stack([scales, scales], axis=2)
        return GroupCodes(codes, np.ones_like(scales), -spread(self._zeros), factors)

    @property
    def _per_number(self) -> int:
        return 32 // self._packing.bits

    @property
    def _middle(self) -> int:
        return 1 << (self._packing.bits - 1)

    @cached_property
    def _shape(self) -> tuple[int, int]:
        """Rows and columns, by the packed codes."""
        found = self._shape_of(self._packed)
        if len(found) != 2 or 0 in found:
            raise self._damaged(self._packed, f"has shape {list(found)}, not two axes")
        times, method = self._per_number, self._packing.format
        if method == "gptq":
            return found[1], found[0] * times
        if method == "awq":
            return found[1] * times, found[0]
        if method == "mlx":
            # Layers may have other sizes of codes than most; groups are as everywhere.
            scales = self._shape_of("scales")
            columns = scales[-1] * self._packing.group if scales else 0
            if columns != found[1] * times:
                what = f"has {found[1] * times} columns of {self._packing.bits} bits, and scales for {columns}"
                raise self._damaged("weight", what)
            return found[0], columns
        rows, columns = self._integers("weight_shape", (2,)).tolist()
        if found != (rows, -(-columns // times)):
            raise self._damaged(self._packed, f"has shape {list(found)} for a weight of {rows} rows, {columns} columns")
        return rows, columns

    @property
    def _columns(self) -> int:
        """How many columns share a scale."""
        return self._packing.group or self._shape[1]

    @property
    def _packed(self) -> str:
        return {"mlx": "weight", "compressed-tensors": "weight_packed"}.get(self._packing.format, "qweight")

    @property
    def _scales(self) -> NDArray[np.float32]:
        """Scales [N, G]."""
        return self._floats("weight_scale" if self._packing.format == "compressed-tensors" else "scales")

    @property
    def _scales_dtype(self) -> str:
        name = "weight_scale" if self._packing.format == "compressed-tensors" else "scales"
        return str(self._tensors.read(f"{self._stem}.{name}", 0, 0).dtype)

    @property
    def _biases(self) -> NDArray[np.float32] | None:
        return self._floats("biases") if self._packing.format == "mlx" else None

    @property
    def _zeros(self) -> NDArray[np.float32]:
        """The code that stands for 0 in each group, [N, G]."""
        N, G = self._scales.shape
        method, bits = self._packing.format, self._packing.bits
        if method == "compressed-tensors":
            if f"{self._stem}.weight_zero_point" not in self._tensors.names():
                return np.full((N, G), self._middle, np.float32)
            packed = self._integers("weight_zero_point", (-(-N // self._per_number), G))
            return unpacked(packed.T, bits).T[:N].astype(np.float32)
        packed = self._integers("qzeros", (G, -(-N // self._per_number)))
        codes = unpacked(packed, bits, AWQ_ORDER if method == "awq" else None)
        return codes.T[:N].astype(np.float32) + self._packing.zeros_less_one

    @property
    def _is_symmetric(self) -> bool:
        return bool((self._zeros == self._middle).all())

    @property
    def _groups(self) -> NDArray[np.intp] | None:
        """Return the group of each column; None where they follow one another."""
        name = {"gptq": "g_idx", "compressed-tensors": "weight_g_idx"}.get(self._packing.format, "")
        if f"{self._stem}.{name}" not in self._tensors.names():
            return None
        found = self._integers(name, (self._shape[1],)).astype(np.intp)
        if (found < 0).any() or (found >= self._scales.shape[1]).any():
            raise self._damaged(name, "names groups that have no scale")
        return None if np.array_equal(found, np.arange(len(found)) // self._columns) else found

    def _codes(self, start: int, stop: int) -> Integers:
        """Return codes of rows, uint8 [stop - start, K]."""
        bits, method, K = self._packing.bits, self._packing.format, self._shape[1]
        if method == "gptq":
            return unpacked(self._integers("qweight")[:, start:stop].T, bits)
        if method == "awq":
            first, last = start // 8, -(-stop // 8)
            codes = unpacked(self._integers("qweight")[:, first:last], bits, AWQ_ORDER)
            return np.ascontiguousarray(codes.T[start - 8 * first : stop - 8 * first])
        return unpacked(self._integers(self._packed)[start:stop], bits)[:, :K]

    def _floats(self, name: str) -> NDArray[np.float32]:
        """Return numbers of groups, float32 [N, G]."""
        N, K = self._shape
        if K % self._columns:
            raise self._damaged(name, f"cannot be for groups of {self._columns} in {K} columns")
        shape = (N, K // self._columns)
        found = self._tensors.read(f"{self._stem}.{name}")
        turned = found.T if self._packing.format in ("gptq", "awq") else found
        if turned.shape != shape:
            raise self._damaged(name, f"has shape {list(found.shape)} for {shape[0]} rows of {shape[1]} groups")
        return np.ascontiguousarray(turned).astype(np.float32)

    def _integers(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return a tensor of whole numbers."""
        found = self._tensors.read_integers(f"{self._stem}.{name}")
        if found.dtype.itemsize != 4 and name not in _PLAIN_INTEGERS:
            raise self._damaged(name, f"is {found.dtype}, not of 32 bits")
        if shape is not None and found.shape != shape:
            raise self._damaged(name, f"has shape {list(found.shape)}, not {list(shape)}")
        return found

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return self._tensors.shape(f"{self._stem}.{name}")

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self._stem}.{name} {what}: download the checkpoint again")


def unpacked(numbers: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> Integers:
    """Return the codes in 32-bit numbers [R, C], lowest bits first: uint8 [R, C * 32 / bits].

    With an `order`, code i of a number belongs at place ``order[i]``.
    """
    words = np.ascontiguousarray(numbers).astype(np.uint32, copy=False)
    codes = np.empty((*words.shape, 32 // bits), np.uint8)
    for i in range(32 // bits):
        codes[..., i if order is None else order[i]] = (words >> (bits * i)) & ((1 << bits) - 1)
    return codes.reshape(len(words), -1)


def unpack_weights(tensors: Tensors, config_file: Path) -> Tensors:
    """Return a checkpoint's tensors with those weights that are packed under the names that unpacked ones have.

    Raises
    ------
    UnsupportedModelError
        As `read_packing` does.
    CheckpointError
        If the configuration cannot be read.
    """
    config: Mapping[str, Any] = read_json_object(config_file)
    packing = read_packing(config, str(config_file))
    if packing is None:
        return tensors
    packed = {"mlx": "scales", "compressed-tensors": "weight_packed"}.get(packing.format, "qweight")
    files: dict[str, TensorFile] = dict(tensors.files)
    for name in tensors.names():
        stem, _, last = name.rpartition(".")
        if last == packed:
            files[f"{stem}.weight"] = PackedWeight(
                tensors, stem, _packing_of(stem, config, str(config_file)) or packing
            )
    return Tensors(tensors.folder, files)


def is_packed(folder: Path) -> bool:
    """Return whether the weights of a checkpoint folder are packed; raises as `unpack_weights` does."""
    return read_packing(read_json_object(folder / "config.json"), str(folder / "config.json")) is not None


def _packing_of(stem: str, config: Mapping[str, Any], source: str) -> Packing | None:
    """Return how one weight is packed where mlx has its own settings for it."""
    section = config.get("quantization")
    if not isinstance(section, dict) or not isinstance(own := section.get(stem), dict):
        return None
    return read_packing({"quantization": {"bits": section["bits"], **own}}, f"{source}: {one_line(stem)}")
