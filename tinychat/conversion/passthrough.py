"""The codes of a checkpoint in the order that the kernels read, none of them changed.

Each tensor has its own size of codes, where a linear's rows are of several tensors too: row blocks of either size may
follow one another. Tensors that no form holds are rounded to eight bits in groups of 32 columns, half a step at most.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.checkpoint.tensors import Tensors
from tinychat.conversion.pack import SLAB_ROWS, Array, check_finite, pack_codes, read_bias, shares_blocks, weight_names
from tinychat.errors import ConversionError
from tinychat.kernels.weights import TABLE_SIZE, ZERO
from tinychat.models.architectures import linears
from tinychat.models.config import ModelConfig
from tinychat.models.layout import LANES, UNQUANTIZED, Quantization, padded
from tinychat.models.passthrough import BITS, NATIVE, Form, PassthroughLinear, joined
from tinychat.models.tensors import Linear

ROUNDED = Form(8)
MIDDLE_OF_FOUR = 8
_LARGEST_CODE = 127
TensorSlice = tuple[str, int, Array]
"""Name of a stored tensor, first byte of it, and the data."""


class Spread(NamedTuple):
    """Rows of codes with the groups and spans of their form, and all that a form can store.

    codes : uint8 [N, K]; of eight bits `ZERO` counts as 0, of fewer 0 does, or without offsets 8 or 1;
    scales, offsets : float32 [N, K / group]; factors : float32 [N, K / span, 2]; tables : int8 [N, 16].
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    offsets: NDArray[np.float32]
    factors: NDArray[np.float32]
    tables: NDArray[np.int8]


def passthrough_quantization(checkpoint: Checkpoint) -> Quantization:
    """Return the quantization that passes a checkpoint's codes through."""
    found = [
        (linear.name, passthrough_linear(checkpoint.tensors, linear))
        for linear in passthrough_linears(checkpoint.config)
    ]
    return Quantization(NATIVE, passthrough=tuple(found))


def passthrough_linears(config: ModelConfig) -> list[Linear]:
    """List the linears that can be stored as codes: all but routers."""
    return [linear for linear in linears(config) if linear.name not in UNQUANTIZED]


def _weights(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """Yield name and size of each weight of passthrough linears."""
    for linear in passthrough_linears(config):
        for shard in range(linear.shards):
            for name, rows in zip(weight_names(linear, shard), linear.rows):
                yield name, rows * linear.columns


def passthrough_share(checkpoint: Checkpoint) -> float:
    """Return the share of a checkpoint's weights whose codes can pass through."""
    tensors, weights = checkpoint.tensors, list(_weights(checkpoint.config))
    found = [size for name, size in weights if name in tensors.by_name and tensors[name].form is not None]
    return sum(found) / sum(size for _, size in weights)


def count_tensors(checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    """Return the numbers of tensors that pass through ("kept") and that are rounded, by the name of their type."""
    counts: dict[str, dict[str, int]] = {"kept": {}, "rounded": {}}
    for name, _ in _weights(checkpoint.config):
        tensor = checkpoint.tensors[name]
        found = counts["rounded" if tensor.form is None else "kept"]
        found[tensor.kind] = found.get(tensor.kind, 0) + 1
    return counts


def passthrough_linear(tensors: Tensors, linear: Linear) -> PassthroughLinear:
    """Return the forms of a linear's codes, and which of them each tensor has."""
    layers = []
    for shard in range(linear.shards):
        forms = [tensors[name].form or ROUNDED for name in weight_names(linear, shard)]
        differ = len({form.bits for form in forms}) > 1 or any(form.table for form in forms)
        if differ and shares_blocks(linear):
            forms = [replace(form, bits=8, table=False) for form in forms]
        layers.append(forms)
    found = [form for forms in layers for form in forms]
    if len({form.bits for form in found}) > 1:
        # Four bits and eight may stand beside each other, and hold what fewer bits do.
        layers = [[replace(form, bits=max(form.bits, 4)) for form in forms] for forms in layers]
        found = [form for forms in layers for form in forms]
    by_size = {bits: [form for form in found if form.bits == bits] for bits in BITS}
    stored = {bits: joined(forms) for bits, forms in by_size.items() if forms}
    if len(stored) > 1 and not stored[4].offsets:
        # Beside codes of eight bits, values count from the same zero as those.
        stored[4] = replace(stored[4], table=True)
    return PassthroughLinear(tuple(stored.values()), tuple(tuple(form.bits for form in forms) for forms in layers))


def passthrough_layers(
    checkpoint: Checkpoint, quantization: Quantization
) -> Iterator[tuple[str, int, Iterator[TensorSlice]]]:
    """Yield name, layer and slices of each layer of passthrough linears; nothing is read before it is asked for."""
    stored = dict(quantization.passthrough)
    for linear in passthrough_linears(checkpoint.config):
        for layer, parts in enumerate(layers_of(checkpoint.tensors, linear, stored[linear.name])):
            yield linear.name, layer, parts


def layers_of(tensors: Tensors, linear: Linear, stored: PassthroughLinear) -> Iterator[Iterator[TensorSlice]]:
    """Yield the slices of each layer of a linear."""
    begins = {form.bits: 0 for form in stored.forms}
    for layer, blocks in enumerate(stored.blocks(linear.rows)):
        yield layer_slices(tensors, linear, stored, layer, dict(begins))
        for bits in blocks:
            begins[bits] += 1


def layer_slices(
    tensors: Tensors, linear: Linear, stored: PassthroughLinear, layer: int, begins: dict[int, int]
) -> Iterator[TensorSlice]:
    """Yield the stored slices of a layer of a linear; `begins` are its first blocks of rows, by the size of codes."""
    forms = {form.bits: form for form in stored.forms}
    for bits, name, rows in _slabs(tensors, linear, weight_names(linear, layer), stored.bits[layer], forms):
        for part, data in arranged(rows, forms[bits], name).items():
            yield f"{linear.name}.{part}{bits}", begins[bits] * data[0].nbytes, data
        begins[bits] += padded(len(rows.codes), LANES) // LANES
    if linear.bias:
        bias = read_bias(tensors, linear, layer)
        yield f"{linear.name}.bias", layer * bias.nbytes, bias


def _slabs(
    tensors: Tensors, linear: Linear, names: list[str], bits_of: tuple[int, ...], forms: dict[int, Form]
) -> Iterator[tuple[int, str, Spread]]:
    """Yield (bits, tensor's name, codes) of a layer of a linear in whole blocks of rows."""
    if shares_blocks(linear):
        form = forms[bits_of[0]]
        parts = [spread(read_codes(tensors, name, 0, rows), form) for name, rows in zip(names, linear.rows)]
        yield form.bits, " + ".join(names), Spread(*(np.concatenate(arrays) for arrays in zip(*parts)))
        return
    for bits, name, count in zip(bits_of, names, linear.rows):
        for start in range(0, count, SLAB_ROWS):
            rows = read_codes(tensors, name, start, min(start + SLAB_ROWS, count))
            yield bits, name, spread(rows, forms[bits])


def read_codes(tensors: Tensors, name: str, start: int, stop: int) -> GroupCodes:
    """Return rows of a weight as codes: its own, or its numbers rounded."""
    if tensors[name].form is not None:
        return tensors[name].read_codes(start, stop)
    rows = tensors.read(name, start, stop).astype(np.float32)
    check_finite(rows, name)
    return rounded(rows)


def rounded(rows: NDArray[np.float32]) -> GroupCodes:
    """Round rows to codes of eight bits: float32 [N, K], of which the last group of 32 columns may be short."""
    N, K = rows.shape
    groups = np.pad(rows, ((0, 0), (0, -K % ROUNDED.group))).reshape(N, -1, ROUNDED.group)
    largest = np.abs(groups).max(axis=2) / np.float32(_LARGEST_CODE)
    factors = largest.max(axis=1, keepdims=True)
    # Scales are float16, of which the largest of a row is 1.
    ratios = np.divide(largest, factors, out=np.zeros_like(largest), where=factors > 0).astype(np.float16)
    scales = ratios.astype(np.float32)
    steps = (scales * factors)[:, :, None]
    codes = np.divide(groups, steps, out=np.zeros_like(groups), where=steps > 0)
    codes = np.clip(np.rint(codes), -_LARGEST_CODE, _LARGEST_CODE) + ZERO
    both = np.repeat(factors[:, :, None], 2, axis=2)
    return GroupCodes(codes.reshape(N, -1).astype(np.uint8), scales, None, both, ZERO)


def in_whole_groups(rows: GroupCodes) -> GroupCodes:
    """Return the same weights, with columns of 0 behind where groups of 16 make no multiple of 32."""
    K = rows.codes.shape[1]
    extra = -K % ROUNDED.group

    def longer(array: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        if array is None:
            return None
        # Of what is for whole rows, nothing.
        behind = array.shape[1] * extra // K
        return np.pad(array, ((0, 0), (0, behind), *[(0, 0)] * (array.ndim - 2)))

    if extra == 0:
        return rows
    codes, scales = np.pad(rows.codes, ((0, 0), (0, extra))), longer(rows.scales)
    assert scales is not None
    return rows._replace(codes=codes, scales=scales, offsets=longer(rows.offsets), factors=longer(rows.factors))


def spread(rows: GroupCodes, form: Form) -> Spread:
    """Return the same weights as a form stores them."""
    rows = in_whole_groups(rows)
    N, K = rows.codes.shape
    factors = np.ones((N, 1, 2), np.float32) if rows.factors is None else rows.factors
    offsets = np.zeros_like(rows.scales) if rows.offsets is None else rows.offsets
    codes, table = rows.codes, np.zeros(TABLE_SIZE, np.int8)
    if form.table:
        table = np.arange(TABLE_SIZE, dtype=np.int8) - np.int8(rows.zero) if rows.table is None else rows.table
    elif rows.table is not None:
        codes = (rows.table[codes].astype(np.int16) + ZERO).astype(np.uint8)
    elif form.bits == 8 and rows.zero == 0 and codes.max(initial=0) >= ZERO:
        # Codes up to 255 count from `ZERO`: an offset adds the difference. The factors are one.
        offsets = offsets + rows.scales * np.float32(ZERO)
    elif form.bits == 8:
        codes = codes + np.uint8(ZERO - rows.zero)
    elif rows.zero and form.offsets:
        # Their codes count from 0: an offset under the scale's own factor subtracts the zero.
        offsets, factors = rows.scales * np.float32(-rows.zero), factors[:, :, [0, 0]]
    elif form.bits == 4 and not form.offsets:
        codes = codes + np.uint8(MIDDLE_OF_FOUR - rows.zero)
    groups, spans = K // form.group, K // (form.span or K)

    def repeated(array: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        return np.repeat(array, count // array.shape[1], axis=1)

    tables = np.repeat(table[None], N, axis=0)
    return Spread(codes, repeated(rows.scales, groups), repeated(offsets, groups), repeated(factors, spans), tables)


def arranged(rows: Spread, form: Form, name: str) -> dict[str, Array]:
    """Return the arrays of whole blocks of rows, by the names of their fields in `kernels.weights`."""
    N = padded(len(rows.codes), LANES)
    codes = np.zeros((N, rows.codes.shape[1]), np.uint8)
    codes[: len(rows.codes)] = rows.codes
    arrays: dict[str, Array] = {
        "packed": pack_codes(codes, form.bits),
        "scales": _stored(by_block(rows.scales, N), form, name),
    }
    if form.offsets:
        arrays["offsets"] = _stored(by_block(rows.offsets, N), form, name)
    check_finite(rows.factors, name)
    arrays["factors"] = np.stack([by_block(rows.factors[:, :, i], N) for i in (0, 1)], axis=2)
    if form.table:
        arrays["table"] = np.ascontiguousarray(rows.tables[::LANES])
    return arrays


def by_block(array: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    """Arrange [N, G] as [rows/16, G, 16], with zeros for rows from N on."""
    filled = np.zeros((rows, array.shape[1]), np.float32)
    filled[: len(array)] = array
    return np.ascontiguousarray(filled.reshape(-1, LANES, array.shape[1]).transpose(0, 2, 1))


def _stored(numbers: NDArray[np.float32], form: Form, name: str) -> Array:
    """Return scales or offsets as they are stored, exactly."""
    check_finite(numbers, name)
    with np.errstate(all="ignore"):
        if form.numbers == "E8M0":
            stored: Array = (numbers.view(np.uint32) >> 23).astype(np.uint8)
            found = (stored.astype(np.uint32) << 23).view(np.float32)
        else:
            stored = numbers.astype({"I8": np.int8, "F16": np.float16, "F32": np.float32}[form.numbers])
            found = stored.astype(np.float32)
    if not np.array_equal(found, numbers):
        raise ConversionError(f"the scales of {name} cannot be stored exactly: convert with another --quant")
    return stored
