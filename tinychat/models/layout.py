"""Name, dtype and shape of each tensor in a model folder: the one description that writer and reader share.

See `tinychat.kernels.weights` for the order of the bytes. Linear layers of one kind are stacked over the decoder's
layers; query, key and value projections are one linear, gate and up projections another.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tinychat.errors import SettingError
from tinychat.models.architectures import linears, norms, tables
from tinychat.models.block_mixtures import GATE_INPUTS, TAPS
from tinychat.models.block_mixtures import GATES as MESSAGE_GATES
from tinychat.models.compressed import HEADS
from tinychat.models.config import ModelConfig
from tinychat.models.decoder import HEAD_GATES, OTHER_HEAD_GATES
from tinychat.models.delta_net import DECAYS, GATES, WIDE_DECAYS
from tinychat.models.experts import ROUTER, ROUTER_IN, ROUTER_INNER
from tinychat.models.mamba import STEPS
from tinychat.models.passthrough import NATIVE, Form, PassthroughLinear
from tinychat.models.selective import LOW
from tinychat.models.tensors import Linear
from tinychat.models.varied_layers import LAYER_INPUTS

DTYPES = ("int4", "int8", "f32", NATIVE)
GROUP_SIZES = (32, 64, 128)
WIDEST_GROUP = 256  # of columns, in codes that pass through
# Small ones that decide much stay float32; of larger ones that do, and of convolutions, int8 is the least.
UNQUANTIZED = (ROUTER, *ROUTER_INNER, HEAD_GATES, OTHER_HEAD_GATES, GATES, DECAYS, STEPS, LOW, *TAPS)
AT_LEAST_INT8 = (ROUTER_IN, HEADS, WIDE_DECAYS, *GATE_INPUTS, *MESSAGE_GATES)
# The first rows of the embedding, where they are stored apart from the others.
FREQUENT = "frequent_tokens"
LANES = 16
LINE = 64  # bytes


@dataclass(frozen=True)
class Quantization:
    """Storage of the weights: "int4" or "int8" codes with a scale for each group of columns, "f32", or "native".

    `int8` names the linears of an int4 model that are stored in int8; `frequent` is how many of the first rows of the
    embedding are, a multiple of 16: tokenizers number the most frequent tokens first. `passthrough` is how the
    checkpoint's own codes of each linear of a native model are stored.
    """

    dtype: str = "int4"
    group_size: int = 32
    int8: tuple[str, ...] = ()
    frequent: int = 0
    passthrough: tuple[tuple[str, PassthroughLinear], ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise SettingError(f"quantization {self.dtype!r} is unknown: choose one of {', '.join(DTYPES)}")
        if self.group_size not in GROUP_SIZES:
            raise SettingError(f"group size {self.group_size} is not supported: choose 32, 64 or 128")
        if self.int8 and self.dtype != "int4":
            raise SettingError(f"{self.int8[0]!r} cannot be in int8 beside {self.dtype}")
        if type(self.frequent) is not int or self.frequent < 0 or self.frequent % LANES:
            raise SettingError(f"{self.frequent!r} rows cannot be in int8: give a multiple of {LANES}")
        if self.frequent and (self.dtype != "int4" or "embed_tokens" in self.int8):
            raise SettingError(f"{self.frequent} rows cannot be in int8: the embedding is not in int4")
        if (self.dtype == NATIVE) != bool(self.passthrough) or (self.passthrough and self.group_size != GROUP_SIZES[0]):
            raise SettingError("codes pass through only where each linear has forms, in groups of 32 columns")

    def dtype_of(self, linear: str) -> str:
        """Return the number format of a linear."""
        if linear in UNQUANTIZED:
            return "f32"
        is_finer = linear in self.int8 or (self.dtype == "int4" and linear in (FREQUENT, *AT_LEAST_INT8))
        return "int8" if is_finer else self.dtype

    @property
    def smallest_group(self) -> int:
        """Fewest columns of a weight that share a scale."""
        return min([form.group for _, linear in self.passthrough for form in linear.forms] or [self.group_size])

    @property
    def column_multiple(self) -> int:
        """The columns of a weight are padded to a multiple of this."""
        return LANES if self.dtype == "f32" else self.group_size


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of ``model.safetensors``; dtype in the format's own letters."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * {"U8": 1, "I8": 1, "F16": 2, "F32": 4}[self.dtype]


def padded(size: int, multiple: int) -> int:
    """Round `size` up to a multiple."""
    return -(-size // multiple) * multiple


def stored_linears(config: ModelConfig, quantization: Quantization) -> list[Linear]:
    """List the linear layers as they are stored: the embedding's frequent rows are one of their own.

    A linear that is to be in int8, and that the model does not have, is a SettingError.
    """
    embedding, *others = linears(config)
    names = [embedding.name, *(each.name for each in others)]
    for name in quantization.int8:
        if name not in names:
            raise SettingError(f"{name!r} cannot be in int8: the model's linears are {', '.join(names)}")
    if not quantization.frequent:
        return [embedding, *others]
    first, (rows,) = quantization.frequent, embedding.rows
    frequent = replace(embedding, name=FREQUENT, rows=(first,))
    return [frequent, replace(embedding, rows=(rows - first,), first=first), *others]


def tensor_specs(config: ModelConfig, quantization: Quantization) -> dict[str, TensorSpec]:
    """Return name, dtype and shape of every tensor, in the order of the file.

    The format allows no gaps, so tensors of whole 64-byte lines come first: each then begins on a line. Passthrough
    codes of another model are a SettingError.
    """
    specs: dict[str, TensorSpec] = {}
    for linear in stored_linears(config, quantization):
        specs.update(_linear_specs(linear, quantization))
    for norm in norms(config):
        stack = () if norm.layers is None else (norm.layers,)
        size = padded(norm.size, quantization.column_multiple) if norm.padded else norm.size
        for name in (norm.name, f"{norm.name}.bias") if norm.bias else (norm.name,):
            specs[name] = TensorSpec("F32", (*stack, size))
    for table in tables(config):
        specs[table.name] = TensorSpec("F32", (table.rows, padded(table.columns, quantization.column_multiple)))
    return dict(sorted(specs.items(), key=lambda item: item[1].bytes % LINE != 0))


def looked_up_bytes(specs: Mapping[str, TensorSpec]) -> int:
    """Return the bytes of the embeddings for each layer: of these, memory holds what tokens have looked up."""
    return sum(spec.bytes for name, spec in specs.items() if name.startswith(LAYER_INPUTS))


def _linear_specs(linear: Linear, quantization: Quantization) -> Iterator[tuple[str, TensorSpec]]:
    stack = linear.stack
    N = padded(sum(linear.rows), LANES)
    K = padded(linear.columns, quantization.column_multiple)
    dtype = quantization.dtype_of(linear.name)
    if dtype == NATIVE:
        yield from passthrough_specs(linear, dict(quantization.passthrough).get(linear.name), K)
    elif dtype == "f32":
        yield f"{linear.name}.values", TensorSpec("F32", (*stack, N // LANES, K, LANES))
    else:
        per_line = 8 if dtype == "int4" else 4
        yield f"{linear.name}.packed", TensorSpec("U8", (*stack, N // LANES, K // per_line, LANES, 4))
        groups = K // quantization.group_size
        yield f"{linear.name}.scales", TensorSpec("I8", (*stack, N // LANES, groups, LANES))
        yield f"{linear.name}.row_scales", TensorSpec("F32", (*stack, N // LANES, LANES))
    if dtype == "int4":
        yield f"{linear.name}.table", TensorSpec("I8", (*stack, 16))
    if linear.bias:
        yield f"{linear.name}.bias", TensorSpec("F32", (*stack, N))


def passthrough_specs(
    linear: Linear, passthrough: PassthroughLinear | None, K: int
) -> Iterator[tuple[str, TensorSpec]]:
    """Yield the tensors of a passthrough linear of K columns: by size of codes, the blocks of rows of all layers."""
    if passthrough is None or len(passthrough.bits) != linear.shards:
        raise SettingError(f"the codes of {linear.name} are of another model")
    if any(len(layer) != len(linear.rows) for layer in passthrough.bits):
        raise SettingError(f"the codes of {linear.name} are of other tensors")
    blocks = [bits for layer in passthrough.blocks(linear.rows) for bits in layer]
    for form in passthrough.forms:
        if K % (form.span or form.group):
            raise SettingError(f"{K} columns of {linear.name} make no whole groups")
        yield from _form_specs(linear.name, form, blocks.count(form.bits), K)


def _form_specs(name: str, form: Form, blocks: int, K: int) -> Iterator[tuple[str, TensorSpec]]:
    numbers = "U8" if form.numbers == "E8M0" else form.numbers
    yield f"{name}.packed{form.bits}", TensorSpec("U8", (blocks, K * form.bits // 32, LANES, 4))
    yield f"{name}.scales{form.bits}", TensorSpec(numbers, (blocks, K // form.group, LANES))
    if form.offsets:
        yield f"{name}.offsets{form.bits}", TensorSpec(numbers, (blocks, K // form.group, LANES))
    if form.table:
        yield f"{name}.table{form.bits}", TensorSpec("I8", (blocks, 16))
    yield f"{name}.factors{form.bits}", TensorSpec("F32", (blocks, K // (form.span or K), 2, LANES))
