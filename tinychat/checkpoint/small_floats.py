"""Checkpoints whose weights are floats of eight or four bits with scales: FP8, NVFP4 and MXFP4.

====== ================================================================================ ==========================
format tensors of a weight [N, K]                                                       weight
====== ================================================================================ ==========================
FP8    weight float8 [N, K]; weight_scale, or weight_scale_inv: one, [N], [N, 1], or     scale * value
       one for each block of rows and columns, [N / n, K / k]
NVFP4  weight or weight_packed uint8 [N, K / 2], the even column of two in the lower     scale * value * weight_scale_2
       bits; weight_scale float8 [N, K / 16]; weight_scale_2 [1], or weight_global_scale or / weight_global_scale
MXFP4  weight_packed uint8 [N, K / 2]; weight_scale uint8 [N, K / 32], exponents         2**(scale - 127) * value
MXFP8  of mlx: weight uint32 [N, K / 4], scales uint8 [N, K / 32], exponents             2**(scale - 127) * value
====== ================================================================================ ==========================

Inkling 2 has those of a layer's experts in one tensor, and others beside it that begin with its name (transformers,
core_model_loading.py):

====== ================================================================================ ==========================
NVFP4  w2_weight uint8 [E, N, K / 2]; w2_weight_scale float8 [E, N, K / 16];             scale * value * amax
       w2_weight_amax and w2_weight_outer_scale_denominator [E], or one                  / denominator
MXFP8  w2_weight float8 [E, N, K]; w2_weight_scale uint8 [E, N, K / 32], exponents       2**(scale - 127) * value
====== ================================================================================ ==========================

float8 is E4M3, and values of four bits are `group_codes.E2M1`. The names are those of ``quant_method: fp8`` (DeepSeek,
Qwen, Mistral: github.com/huggingface/transformers, integrations/finegrained_fp8.py), of compressed-tensors and of
NVIDIA's modelopt (github.com/vllm-project/compressed-tensors, github.com/NVIDIA/Model-Optimizer), which may mix them: a
weight is read by the tensors that it has. Scales of activations are not used. One scale of a whole tensor of NVFP4 has
18 bits here. mlx has weights as uint32 and scales as uint8, called weight and scales, in its modes of these names, and
none of whole tensors.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.group_codes import E2M1, GroupCodes, in_18_bits, looked_up, nibbles, powers_of_two
from tinychat.checkpoint.mapping import FLOAT8, FloatArray
from tinychat.checkpoint.rescaled import one_scale
from tinychat.checkpoint.tensor_part import PackedTensor, StackedTensor, part_of, tensors_of_expert
from tinychat.checkpoint.tensors import Tensor, Tensors
from tinychat.errors import UnsupportedModelError
from tinychat.models.passthrough import Form
from tinychat.models.tensors import Part

METHODS = ("fp8", "fbgemm_fp8", "modelopt")
# Where older checkpoints of modelopt say so, and not in their configuration.
MODELOPT_FILE = "hf_quant_config.json"
# Of compressed-tensors.
FORMATS = ("float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision")
# Modes of mlx, and the bits and columns of a group that they have.
MLX_MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
_WEIGHT, _PACKED, _SCALE, _INVERSE = "weight", "weight_packed", "weight_scale", "weight_scale_inv"
_FACTOR, _DIVISOR = "weight_scale_2", "weight_global_scale"
_ZERO, _SHAPE, _INPUTS = "weight_zero_point", "weight_shape", "pre_quant_scale"
_MLX_SCALES = "scales"
# Of all experts of a layer: ends of the codes' name, and what stands behind it in those of their scales.
_OF_EXPERTS, _AMAX, _DENOMINATOR = "_weight", "_amax", "_outer_scale_denominator"
_BLOCK = (128, 128)
_COLUMNS_OF_NVFP4, _COLUMNS_OF_MX = 16, 32


class _SmallFloats(PackedTensor):
    """A weight of small floats; `stem` is its name without ``.weight``."""

    def __init__(self, tensors: Tensors, stem: str, codes: str, scales: str) -> None:
        self._codes_tensor, self._scales_tensor = tensors[f"{stem}.{codes}"], tensors[f"{stem}.{scales}"]
        self._comes_with(self._codes_tensor, self._scales_tensor)
        self._tensors, self._stem, self._codes_name, self._scales_name = tensors, stem, codes, scales

    def of_expert(self, expert: int) -> Tensor:
        """Return the weight of one expert, of mlx."""
        raise self._damaged(self._codes_name, "is of all experts, which is not supported")

    def _scales_of(self, shape: tuple[int, int], as_integers: bool) -> FloatArray:
        """Return the scales as they are stored, in that shape; axes of one element may be beside."""
        found = self._scales_tensor
        if [size for size in found.shape if size != 1] != [size for size in shape if size != 1]:
            raise self._damaged(self._scales_name, f"has shape {list(found.shape)}, expected {list(shape)}")
        scales: FloatArray = found.read_integers() if as_integers else found.read(0, found.shape[0])
        return scales.reshape(shape)

    def _exponents(self, shape: tuple[int, int]) -> NDArray[np.uint8]:
        """Return scales that are exponents, or float8 that the format calls whole numbers."""
        found = self._scales_of(shape, as_integers=True)
        if found.dtype != np.uint8:
            raise self._damaged(self._scales_name, f"is {found.dtype}, not uint8")
        return found

    def _bytes(self, dtype: type[np.unsignedinteger] | np.dtype[Any]) -> NDArray[np.uint8]:
        """Return codes, a matrix of whole numbers of a type or of float8, as bytes, the lowest of a number first."""
        found = self._codes_tensor.read_integers()
        if found.dtype != dtype:
            raise self._damaged(self._codes_name, f"is {found.dtype}, not {np.dtype(dtype)}")
        return np.ascontiguousarray(found).view(np.uint8)


class Float8Tensor(_SmallFloats):
    """A weight of float8 with scales; `block` : rows and columns that share one, where neither rows nor tensors do."""

    kind = "FP8"

    def __init__(self, tensors: Tensors, stem: str, scales: str, block: tuple[int, int]) -> None:
        super().__init__(tensors, stem, _WEIGHT, scales)
        self._block = block

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        found = self._codes_tensor.shape
        if len(found) != 2:
            what = f"{self._stem}.{_WEIGHT} is float8 of shape {list(found)}, which is not supported"
            raise UnsupportedModelError(f"{self.path}: {what}; use the unquantized checkpoint")
        return found

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1`` in float32."""
        values = self._codes_tensor.read_integers()[start:stop]
        if values.dtype != FLOAT8:
            raise self._damaged(_WEIGHT, f"is {values.dtype}, not float8")
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            return np.asarray(values.astype(np.float32) * self._scales(start, stop), np.float32)

    def _scales(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return scales that go with rows, [stop - start, K] or with fewer columns, or one."""
        (N, K), found = self.shape, self._scales_tensor
        if math.prod(found.shape) == 1:
            return found.read(0, 1).astype(np.float32).reshape(1, 1)
        if found.shape in ((N,), (N, 1)):
            return found.read(start, stop).astype(np.float32).reshape(-1, 1)
        rows, columns = self._block
        blocks = self._scales_of((-(-N // rows), -(-K // columns)), as_integers=False).astype(np.float32)
        return np.repeat(blocks[np.arange(start, stop) // rows], columns, axis=1)[:, :K]


class Mxfp8Tensor(_SmallFloats):
    """A weight of float8 with powers of two as scales."""

    kind = "MXFP8"

    def __init__(self, tensors: Tensors, stem: str, codes: str, scales: str, is_of_mlx: bool = False) -> None:
        super().__init__(tensors, stem, codes, scales)
        self._is_of_mlx = is_of_mlx

    def of_expert(self, expert: int) -> Tensor:
        """Return the weight of one expert, of mlx."""
        tensors = tensors_of_expert(self._tensors, self._stem, expert)
        return Mxfp8Tensor(tensors, self._stem, self._codes_name, self._scales_name, self._is_of_mlx)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of the weight."""
        found, columns = self._codes_tensor.shape, 4 if self._is_of_mlx else 1
        if len(found) != 2 or columns * found[1] % _COLUMNS_OF_MX:
            raise self._damaged(self._codes_name, f"has shape {list(found)}, not rows of whole groups")
        return found[0], columns * found[1]

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1`` in float32."""
        N, K = self.shape
        codes = self._bytes(np.uint32 if self._is_of_mlx else FLOAT8)
        values = codes[start:stop].view(FLOAT8).astype(np.float32)
        scales = powers_of_two(self._exponents((N, K // _COLUMNS_OF_MX))[start:stop])
        # The caller reports what is not finite.
        with np.errstate(all="ignore"):
            return np.asarray(values * np.repeat(scales, _COLUMNS_OF_MX, axis=1))


class Float4Tensor(_SmallFloats):
    """A weight of floats of four bits; is_mxfp4 : whether its scales are powers of two; `codes`, `scales` : names.

    factors : names of the scales of the whole tensor, and whether it is divided by them.
    """

    def __init__(
        self,
        tensors: Tensors,
        stem: str,
        codes: str,
        is_mxfp4: bool,
        scales: str = _SCALE,
        is_of_mlx: bool = False,
        factors: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__(tensors, stem, codes, scales)
        self._is_mxfp4, self._is_of_mlx, self._factors = is_mxfp4, is_of_mlx, factors or {}

    def of_expert(self, expert: int) -> Tensor:
        """Return the weight of one expert."""
        tensors = tensors_of_expert(self._tensors, self._stem, expert)
        return Float4Tensor(tensors, self._stem, self._codes_name, self._is_mxfp4, self._scales_name, self._is_of_mlx)

    @property
    def kind(self) -> str:
        """Name of the format."""
        return "MXFP4" if self._is_mxfp4 else "NVFP4"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of the weight."""
        found, columns = self._codes_tensor.shape, 8 if self._is_of_mlx else 2
        if len(found) != 2 or columns * found[1] % self._group:
            raise self._damaged(self._codes_name, f"has shape {list(found)}, not rows of whole groups")
        return found[0], columns * found[1]

    @property
    def form(self) -> Form:
        """Form of the codes."""
        return Form(4, "E8M0" if self._is_mxfp4 else "F16", self._group, table=True)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows ``start..stop-1`` in float32."""
        return looked_up(self.read_codes(start, stop))

    def read_codes(self, start: int, stop: int) -> GroupCodes:
        """Return rows ``start..stop-1`` as codes."""
        dtype = np.uint32 if self._is_of_mlx else np.uint8
        codes = nibbles(self._bytes(dtype)[start:stop])
        return GroupCodes(codes, self._scales(start, stop), table=E2M1).times(self._factor / np.float32(2))

    @property
    def _group(self) -> int:
        return _COLUMNS_OF_MX if self._is_mxfp4 else _COLUMNS_OF_NVFP4

    def _scales(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the scales of rows, [stop - start, K / group]."""
        N, K = self.shape
        shape = N, K // self._group
        if self._is_mxfp4:
            return powers_of_two(self._exponents(shape)[start:stop])
        found = self._exponents(shape).view(FLOAT8) if self._is_of_mlx else self._scales_of(shape, as_integers=True)
        if found.dtype != FLOAT8:
            raise self._damaged(self._scales_name, f"is {found.dtype}, not float8")
        return np.asarray(found[start:stop].astype(np.float32))

    @cached_property
    def _factor(self) -> np.float32:
        """Scale of the whole tensor."""
        product = np.ones(1, np.float32)
        for name, divides in self._factors.items():
            scale = one_scale(self._tensors[f"{self._stem}.{name}"], divides)
            if scale is None:
                raise self._damaged(name, "is not one number that a weight can have")
            # The caller reports what is not finite.
            with np.errstate(all="ignore"):
                product *= scale
        number: np.float32 = in_18_bits(product)[0]
        return number


def of_mlx(tensors: Tensors, stem: str, mode: str) -> Tensor:
    """Return a weight that mlx has in one of `MLX_MODES`."""
    if mode == "mxfp8":
        return Mxfp8Tensor(tensors, stem, _WEIGHT, _MLX_SCALES, is_of_mlx=True)
    return Float4Tensor(tensors, stem, _WEIGHT, mode == "mxfp4", _MLX_SCALES, is_of_mlx=True)


def has_small_floats(section: Mapping[str, Any]) -> bool:
    """Return whether a ``quantization_config`` is of one of the formats."""
    method = section.get("quant_method")
    return method in METHODS or (method == "compressed-tensors" and section.get("format") in FORMATS)


def unpack_small_floats(tensors: Tensors, section: Mapping[str, Any]) -> Tensors:
    """Return a checkpoint's tensors with its weights of small floats as such."""
    found, block = dict(tensors.by_name), section.get("weight_block_size")
    sizes = tuple(block) if isinstance(block, list) and len(block) == 2 else _BLOCK
    if not all(type(size) is int and size > 0 for size in sizes):
        sizes = _BLOCK
    for name in tensors.by_name:
        stem, _, last = name.rpartition(".")
        if last == _INPUTS:
            raise UnsupportedModelError(f"{tensors.folder}: {name} multiplies inputs, which is not supported")
        if last not in (_SCALE, _INVERSE):
            continue
        names = {part for part in (_WEIGHT, _PACKED, _FACTOR, _DIVISOR) if f"{stem}.{part}" in tensors.by_name}
        if last == _SCALE and names & {_PACKED, _FACTOR}:
            for other in (_ZERO, _SHAPE):
                if f"{stem}.{other}" in tensors.by_name:
                    what = f"{stem}.{other} is of whole numbers beside others"
                    raise UnsupportedModelError(f"{tensors.folder}: {what}, which is not supported")
            factors = {_FACTOR: False} if _FACTOR in names else {_DIVISOR: True} if _DIVISOR in names else {}
            codes = _PACKED if _PACKED in names else _WEIGHT
            found[f"{stem}.{_WEIGHT}"] = Float4Tensor(tensors, stem, codes, not factors, factors=factors)
        elif _WEIGHT in names:
            found[f"{stem}.{_WEIGHT}"] = Float8Tensor(tensors, stem, last, sizes)
    return Tensors(tensors.folder, found)


def has_experts_of_floats(tensors: Tensors) -> bool:
    """Return whether a checkpoint has weights that `weight_of_expert` reads."""
    return any(".experts." in name and name.endswith(f"{_OF_EXPERTS}_scale") for name in tensors.by_name)


def weight_of_expert(tensors: Tensors, name: str, expert: int, count: int) -> Tensor | None:
    """Return the weight of one of `count` experts that Inkling 2 has as small floats; None where it has none.

    `name` is that of the tensor of all; those beside it tell the format.
    """
    stem, _, codes = name.rpartition(".")
    scales, *others = (f"{codes}{end}" for end in ("_scale", _AMAX, _DENOMINATOR))
    known = [part for part in (scales, *others) if f"{stem}.{part}" in tensors.by_name]
    if not known or not codes.endswith(_OF_EXPERTS):
        return None
    own: dict[str, Tensor] = {
        whole: StackedTensor(tensors[whole], whole, expert) for whole in (name, f"{stem}.{scales}")
    }
    if known == [scales]:
        return Mxfp8Tensor(Tensors(tensors.folder, own), stem, codes, scales)
    for whole in (f"{stem}.{part}" for part in others):
        numbers = tensors[whole]
        is_one = math.prod(numbers.shape) == 1
        own[whole] = numbers if is_one else part_of(numbers, whole, Part(0, expert, expert + 1, count))
    factors = dict(zip(others, (False, True)))
    return Float4Tensor(Tensors(tensors.folder, own), stem, codes, False, scales, factors=factors)
