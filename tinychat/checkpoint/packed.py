"""Checkpoints whose weights are codes already: GPTQ, AWQ, compressed-tensors and mlx, of one to eight bits.

Those of ternary weights, `checkpoint.ternary` reads, and those of small floats, `checkpoint.small_floats`.

Each packs codes into 32-bit numbers, the lowest bits first, and has a scale for each row and group of columns; of four
bits, in eight columns or rows to a number:

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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.mapping import FloatArray
from tinychat.checkpoint.small_floats import (
    MLX_MODES,
    MODELOPT_FILE,
    has_experts_of_floats,
    has_small_floats,
    of_mlx,
    unpack_small_floats,
)
from tinychat.checkpoint.tensor_part import PackedTensor, tensors_of_expert
from tinychat.checkpoint.tensors import Tensor, Tensors, open_tensors
from tinychat.checkpoint.ternary import METHOD, unpack_ternary
from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import parse_config
from tinychat.models.passthrough import BITS, GROUPS, Form

# Packed experts alone: `checkpoint.stacked` reads them.
STACKED_METHOD = "mxfp4"
# The column of each four bits of AWQ's numbers.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Tensors of whole numbers that hold no codes.
_PLAIN_INTEGERS = ("weight_shape", "g_idx", "weight_g_idx")
Integers = NDArray[np.uint8]


class _Names(NamedTuple):
    """Names of a format's tensors after the weight's stem; empty where it has none."""

    codes: str
    scales: str
    zeros: str = ""
    groups: str = ""


NAMES = {
    "gptq": _Names("qweight", "scales", "qzeros", "g_idx"),
    "awq": _Names("qweight", "scales", "qzeros"),
    "compressed-tensors": _Names("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"),
    "mlx": _Names("weight", "scales"),
}


@dataclass(frozen=True)
class Packing:
    """How a checkpoint's weights are packed, in one of the formats of `NAMES`."""

    format: str
    bits: int
    group: int  # columns that share a scale; 0 for whole rows
    zeros_less_one: bool = False  # stored zeros are one less than the code of 0
    mode: str = ""  # of mlx, where it is not "affine": one of `small_floats.MLX_MODES`


def read_packing(config: Mapping[str, Any], source: str) -> Packing | None:
    """Return the packing of a checkpoint's weights by its ``config.json``; None where they are not packed."""
    section = config.get("quantization_config") or config.get("quantization")
    if not isinstance(section, dict) or not section or section.get("quant_method") == STACKED_METHOD:
        return None

    def refuse(what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{source}: {what} is not supported; use the unquantized checkpoint")

    method = section.get("quant_method", "mlx")
    settings: Mapping[str, Any] = _only_group(section, refuse) if method == "compressed-tensors" else section
    bits, group = settings.get("num_bits", settings.get("bits")), settings.get("group_size")
    if group in (None, -1) and method in ("gptq", "compressed-tensors"):
        group = 0
    least_group = 1 if method in ("awq", "mlx") else 0
    known_bits = {"awq": (4,), "mlx": (1, 2, 3, 4, 5, 6, 8)}.get(str(method), (4, 8))
    version, mode = str(section.get("version", "gemm")), str(section.get("mode", "affine"))
    layout = section.get("checkpoint_format", "gptq")
    for is_refused, what in (
        (method not in [*NAMES], f"quantization by {one_line(str(method), 40)}"),
        (type(bits) is not int or bits not in known_bits, f"{method} with {one_line(repr(bits), 20)} bits"),
        (type(group) is not int or group < least_group, f"{method} with groups of {one_line(repr(group), 20)}"),
        (method == "awq" and version.lower() != "gemm", f"awq in its version {one_line(version, 20)}"),
        (bool(section.get("dynamic")), f"{method} with other settings for some weights"),
        (method == "mlx" and not _is_known(mode, bits, group), f"mlx in its mode {one_line(mode, 20)}"),
        (method == "gptq" and layout not in ("gptq", "gptq_v2"), f"gptq in the format {one_line(str(layout), 20)}"),
    ):
        if is_refused:
            raise refuse(what)
    own_mode = mode if method == "mlx" and mode in MLX_MODES else ""
    return Packing(method, bits, group or 0, method == "gptq" and layout == "gptq", own_mode)


def _is_known(mode: str, bits: object, group: object) -> bool:
    """Return whether a mode of mlx can be read."""
    return mode == "affine" or MLX_MODES.get(mode) == (bits, group)


def _only_group(section: Mapping[str, Any], refuse: Callable[[str], UnsupportedModelError]) -> Mapping[str, Any]:
    """Return the settings of compressed-tensors for all packed weights."""
    groups = section.get("config_groups")
    entries = [*groups.values()] if isinstance(groups, dict) else []
    weights = entries[0].get("weights") if len(entries) == 1 and isinstance(entries[0], dict) else None
    if section.get("format") != "pack-quantized" or not isinstance(weights, dict) or weights.get("type") != "int":
        raise refuse(f"compressed-tensors in the format {one_line(str(section.get('format')), 40)}")
    if entries[0].get("input_activations") or weights.get("strategy") not in ("group", "channel"):
        raise refuse("compressed-tensors with other than weights in groups")
    return weights


class PackedWeight(PackedTensor):
    """One packed weight of a checkpoint; `stem` is its name without ``.weight``."""

    def __init__(self, tensors: Tensors, stem: str, packing: Packing) -> None:
        self.path, self._tensors, self._stem, self._packing = tensors.folder, tensors, stem, packing
        self._names = NAMES[packing.format]
        self._per_number = 32 // packing.bits
        self._middle = 1 << (packing.bits - 1)

    @property
    def kind(self) -> str:
        """Name of the format."""
        return {"gptq": "GPTQ", "awq": "AWQ"}.get(self._packing.format, self._packing.format)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, by the packed codes."""
        found = self._tensors[f"{self._stem}.{self._names.codes}"].shape
        if len(found) != 2 or 0 in found:
            raise self._damaged(self._names.codes, f"has shape {list(found)}, not two axes")
        times = self._per_number
        match self._packing.format:
            case "gptq":
                return found[1], found[0] * times
            case "awq":
                return found[1] * times, found[0]
            case "mlx":
                # Layers may have other sizes of codes than most; groups are as everywhere.
                scales = self._tensors[f"{self._stem}.scales"].shape
                columns, bits = scales[-1] * self._packing.group if scales else 0, self._packing.bits
                if columns * bits != found[1] * 32:
                    what = f"has {found[1] * 32 // bits} columns of {bits} bits, and scales for {columns}"
                    raise self._damaged("weight", what)
                return found[0], columns
        rows, columns = self._integers("weight_shape", (2,)).tolist()
        if found != (rows, -(-columns // times)):
            what = f"has shape {list(found)} for a weight of {rows} rows, {columns} columns"
            raise self._damaged(self._names.codes, what)
        return rows, columns

    def of_expert(self, expert: int) -> Tensor:
        """Return the weight of one expert, of mlx."""
        return PackedWeight(tensors_of_expert(self._tensors, self._stem, expert), self._stem, self._packing)

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows ``start..stop-1`` in float32."""
        codes, scales, offsets = self._codes(start, stop), self._scales[start:stop], self._biases
        groups = self._groups
        columns = np.arange(self.shape[1]) // self._columns if groups is None else groups
        values = codes.astype(np.float32)
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            if offsets is None:
                numbers: FloatArray = (values - self._zeros[start:stop][:, columns]) * scales[:, columns]
            else:
                numbers = values * scales[:, columns] + offsets[start:stop][:, columns]
        return numbers

    @property
    def form(self) -> Form | None:
        """Form of the codes; None where their groups are not those of neighbouring columns."""
        group = math.gcd(self._columns, GROUPS[-1])
        if group not in GROUPS or self._groups is not None:
            return None
        stored = self._tensors.read(f"{self._stem}.{self._names.scales}", 0, 0)
        numbers = "F16" if stored.dtype == np.float16 else "F32"
        if self._biases is not None:
            # Codes of eight bits are stored around 128: that makes offsets which float16 does not hold.
            # Those of one bit take two, which may have offsets, and others the next size that there is.
            bits = next(size for size in BITS[1:] if size >= self._packing.bits)
            return Form(bits, "F32" if self._packing.bits == 8 else numbers, group, offsets=True)
        if self._is_symmetric:
            return Form(self._packing.bits, numbers, group)
        # Zeros are whole: with the scale as a factor, they are as exact as the codes.
        return Form(self._packing.bits, "I8" if self._packing.bits == 4 else "F16", group, group, offsets=True)

    def read_codes(self, start: int, stop: int) -> GroupCodes:
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
    def _columns(self) -> int:
        """How many columns share a scale."""
        return self._packing.group or self.shape[1]

    @property
    def _scales(self) -> NDArray[np.float32]:
        return self._floats(self._names.scales)

    @property
    def _biases(self) -> NDArray[np.float32] | None:
        return self._floats("biases") if self._packing.format == "mlx" else None

    @property
    def _zeros(self) -> NDArray[np.float32]:
        """Code of 0 in each group, [N, G]."""
        N, G = self._scales.shape
        bits, packed_rows = self._packing.bits, -(-N // self._per_number)
        if self._packing.format == "compressed-tensors":
            if f"{self._stem}.{self._names.zeros}" not in self._tensors.by_name:
                return np.full((N, G), self._middle, np.float32)
            packed = self._integers(self._names.zeros, (packed_rows, G))
            return unpacked(packed.T, bits).T[:N].astype(np.float32)
        packed = self._integers(self._names.zeros, (G, packed_rows))
        codes = unpacked(packed, bits, AWQ_ORDER if self._packing.format == "awq" else None)
        return codes.T[:N].astype(np.float32) + self._packing.zeros_less_one

    @property
    def _is_symmetric(self) -> bool:
        return bool((self._zeros == self._middle).all())

    @property
    def _groups(self) -> NDArray[np.intp] | None:
        """Group of each column; None where they follow one another."""
        name = self._names.groups
        if not name or f"{self._stem}.{name}" not in self._tensors.by_name:
            return None
        found = self._integers(name, (self.shape[1],)).astype(np.intp)
        if (found < 0).any() or (found >= self._scales.shape[1]).any():
            raise self._damaged(name, "names groups that have no scale")
        return None if np.array_equal(found, np.arange(len(found)) // self._columns) else found

    def _codes(self, start: int, stop: int) -> Integers:
        """Return codes of rows, uint8 [stop - start, K]."""
        columns, bits = self.shape[1], self._packing.bits
        packed = self._integers(self._names.codes)
        if self._packing.format == "gptq":
            return unpacked(packed[:, start:stop].T, bits)
        if self._packing.format == "awq":
            first, last = start // 8, -(-stop // 8)
            codes = unpacked(packed[:, first:last], bits, AWQ_ORDER)
            return np.ascontiguousarray(codes.T[start - 8 * first : stop - 8 * first])
        return unpacked(packed[start:stop], bits)[:, :columns]

    def _floats(self, name: str) -> NDArray[np.float32]:
        """Return numbers of groups, float32 [N, G]."""
        N, K = self.shape
        if K % self._columns:
            raise self._damaged(name, f"cannot be for groups of {self._columns} in {K} columns")
        found = self._tensors.read(f"{self._stem}.{name}")
        turned = found.T if self._packing.format in ("gptq", "awq") else found
        if turned.shape != (N, K // self._columns):
            raise self._damaged(name, f"has shape {list(found.shape)} for {N} rows of {K // self._columns} groups")
        return np.ascontiguousarray(turned).astype(np.float32)

    def _integers(self, name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return a tensor of whole numbers."""
        found = self._tensors[f"{self._stem}.{name}"].read_integers()
        if found.dtype.itemsize != 4 and name not in _PLAIN_INTEGERS:
            raise self._damaged(name, f"is {found.dtype}, not of 32 bits")
        if shape is not None and found.shape != shape:
            raise self._damaged(name, f"has shape {list(found.shape)}, not {list(shape)}")
        return found


def unpacked(numbers: NDArray[Any], bits: int, order: tuple[int, ...] | None = None) -> Integers:
    """Return the codes in 32-bit numbers [R, C], lowest bits first: uint8 [R, C * 32 / bits].

    With an `order`, code i of a number is that of its column ``order[i]``. Codes of 3, 5 and 6 bits begin in one number
    and end in the next.
    """
    words = np.ascontiguousarray(numbers).astype(np.uint32, copy=False)
    if 32 % bits:
        by_code = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").reshape(len(words), -1, bits)
        return np.packbits(by_code, axis=2, bitorder="little")[:, :, 0]
    codes = np.empty((*words.shape, 32 // bits), np.uint8)
    for i in range(32 // bits):
        codes[..., i if order is None else order[i]] = (words >> (bits * i)) & ((1 << bits) - 1)
    return codes.reshape(len(words), -1)


def unpack_weights(tensors: Tensors) -> Tensors:
    """Return a checkpoint's tensors with its packed weights under the names of unpacked ones."""
    config_file = tensors.folder / "config.json"
    config, source = read_json_object(config_file), str(config_file)
    if section := _section_of(config, METHOD):
        return unpack_ternary(tensors, section, source)
    if section := _section_of_floats(config, tensors.folder):
        return unpack_small_floats(tensors, section)
    if has_experts_of_floats(tensors):
        # `checkpoint.stacked` reads them by their tensors, whatever the configuration calls them.
        return tensors
    packing = read_packing(config, source)
    if packing is None:
        return tensors
    found = dict(tensors.by_name)
    # A weight of mlx may have the name of an unpacked one.
    marker = "scales" if packing.format == "mlx" else NAMES[packing.format].codes
    for name in tensors.by_name:
        stem, _, last = name.rpartition(".")
        if last == marker:
            own = _own_packing(stem, config, source) or packing
            weight = of_mlx(tensors, stem, own.mode) if own.mode else PackedWeight(tensors, stem, own)
            found[f"{stem}.weight"] = weight
    return Tensors(tensors.folder, found)


def is_packed(folder: Path) -> bool:
    """Return whether the weights of a checkpoint folder are packed; raises as `unpack_weights` does."""
    config = read_json_object(folder / "config.json")
    if _section_of(config, METHOD) or _section_of(config, STACKED_METHOD) or _section_of_floats(config, folder):
        return True
    source = str(folder / "config.json")
    if parse_config(config, source).experts and has_experts_of_floats(open_tensors(folder)):
        return True
    return read_packing(config, source) is not None


def _section_of(config: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return the settings of a checkpoint that is quantized by a method; empty where it is not."""
    section = config.get("quantization_config")
    return section if isinstance(section, dict) and section.get("quant_method") == method else {}


def _section_of_floats(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return the settings of a checkpoint of small floats; empty where it is none."""
    section = config.get("quantization_config")
    if section is None and (folder / MODELOPT_FILE).is_file():
        return {"quant_method": "modelopt"}
    return section if isinstance(section, dict) and has_small_floats(section) else {}


def _own_packing(stem: str, config: Mapping[str, Any], source: str) -> Packing | None:
    """Return the packing of one weight where mlx has its own settings for it."""
    section = config.get("quantization")
    if not isinstance(section, dict) or not isinstance(own := section.get(stem), dict):
        return None
    return read_packing({"quantization": {"bits": section.get("bits"), **own}}, f"{source}: {one_line(stem)}")
