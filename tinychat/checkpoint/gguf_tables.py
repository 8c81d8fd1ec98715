"""The types of GGUF whose numbers are values of a table times a scale, as the blocks of a file hold them.

A block has a float16, in most with whole numbers that it is multiplied by for groups of 16 or 32 columns; a table has
at most 16 values (github.com/ggml-org/ggml, src/ggml-common.h). Types of four bits hold places in the table. Those of
fewer (IQ1 to IQ3) hold four or eight values at a time, as a place in a list of vectors that the package `gguf` knows:
here they take four bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf_types import numbers_of, type_of
from tinychat.checkpoint.group_codes import E2M1, GroupCodes, nibbles, powers_of_two
from tinychat.checkpoint.mapping import FLOAT8
from tinychat.models.passthrough import Form

Blocks = NDArray[np.uint8]
Whole = NDArray[np.int32]
Floats = NDArray[np.float32]
# The bytes of 1 in float16.
ONE = np.array([1], "<f2").view(np.uint8)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
IQ3_S = tuple(range(-15, 16, 2))
IQ3_XXS = (-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62)
IQ2 = (-43, -25, -8, 8, 25, 43)
# -1, 0 and 1, and an eighth more or less: times 8.
IQ1 = (-9, -7, -1, 1, 7, 9)


@dataclass(frozen=True)
class TableType:
    """A type of tensors: a number is ``unit * half * scale * table[code]``, `half` the block's float16."""

    table: Sequence[int]
    form: Form
    scales: Callable[[Blocks], Whole] | None = None  # by group; None: 1
    unit: float = 1
    codes: int | None = None  # byte of a block where they begin; None where vectors are in their place


def _words(packed: Blocks, dtype: str) -> NDArray[np.int64]:
    """Return bytes as numbers of several."""
    return np.ascontiguousarray(packed).view(dtype).astype(np.int64)


def _odd(halves: NDArray[Any]) -> Whole:
    """Return the scales that numbers of halves stand for: twice as many, and 1."""
    return 2 * halves.astype(np.int32) + 1


def _of_iq4_xs(blocks: Blocks) -> Whole:
    """Return the scales of IQ4_XS: six bits each, the upper two of all first, 32 more than they mean."""
    upper = _words(blocks[:, 2:4], "<u2") >> np.arange(0, 16, 2) & 3
    return (nibbles(blocks[:, 4:8]) + (upper << 4) - 32).astype(np.int32)


def _of_iq1_m(blocks: Blocks) -> Whole:
    """Return the scales of IQ1_M: four of three bits in each word."""
    return _odd(_words(blocks[:, 48:], "<u2")[:, :, None] >> np.arange(0, 12, 3) & 7).reshape(len(blocks), -1)


_OF_16, _OF_32 = (Form(4, "I8", columns, 256, table=True) for columns in (16, 32))
TABLES = {
    "IQ1_M": TableType(IQ1, _OF_16, _of_iq1_m, 1 / 8),
    "IQ1_S": TableType(IQ1, _OF_32, lambda blocks: _odd(_words(blocks[:, 34:], "<u2") >> 12 & 7), 1 / 8),
    "IQ2_XXS": TableType(IQ2, _OF_32, lambda blocks: _odd(_words(blocks[:, 2:], "<u4")[:, 1::2] >> 28), 1 / 8),
    "IQ2_XS": TableType(IQ2, _OF_16, lambda blocks: _odd(nibbles(blocks[:, 66:])), 1 / 8),
    "IQ2_S": TableType(IQ2, _OF_16, lambda blocks: _odd(nibbles(blocks[:, 74:])), 1 / 8),
    "IQ3_XXS": TableType(IQ3_XXS, _OF_32, lambda blocks: _odd(_words(blocks[:, 66:], "<u4") >> 28), 1 / 4),
    "IQ3_S": TableType(IQ3_S, _OF_32, lambda blocks: _odd(nibbles(blocks[:, 106:]))),
    "IQ4_NL": TableType(IQ4, Form(4, table=True), codes=2),
    "IQ4_XS": TableType(IQ4, _OF_32, _of_iq4_xs, codes=8),
    "MXFP4": TableType(E2M1.tolist(), Form(4, "E8M0", table=True), unit=1 / 2, codes=1),
    "NVFP4": TableType(E2M1.tolist(), Form(4, "F16", 16, table=True), unit=1 / 2, codes=4),
}


def codes_in_table(rows: Blocks, number: int) -> GroupCodes:
    """Return the codes of rows of blocks, uint8 [N, bytes], of one of `TABLES`."""
    name, blocks = type_of(number).name, rows.reshape(-1, type_of(number).bytes)
    kind, N, halves = TABLES[name], len(rows), _halves(blocks, name)
    if kind.scales is None:
        scales, factors = halves, np.ones((N, 1), np.float32)
    else:
        scales, factors = kind.scales(blocks).astype(np.float32), halves.reshape(N, -1)
    if kind.codes is None:
        codes = _places(blocks, number, scales * np.float32(kind.unit), kind.table)
    else:
        # Of a group, those of the first half are in the lower bits.
        packed = blocks[:, kind.codes :].reshape(-1, kind.form.group // 2)
        codes = np.concatenate([packed & 15, packed >> 4], axis=1)
    both = np.repeat(factors[:, :, None] * np.float32(kind.unit), 2, axis=2)
    table = np.zeros(16, np.int8)
    table[: len(kind.table)] = kind.table
    return GroupCodes(codes.reshape(N, -1), scales.reshape(N, -1), None, both, table=table)


def _halves(blocks: Blocks, name: str) -> Floats:
    """Return the float16 of each block, or what it has in its place: float32 [B, 1], of NVFP4 [B, 4]."""
    if name == "MXFP4":
        return powers_of_two(np.ascontiguousarray(blocks[:, :1]))
    if name == "NVFP4":
        # Without signs; what would be NaN counts as 0.
        scales: Floats = (blocks[:, :4] & 127).view(FLOAT8).astype(np.float32)
        return np.where(np.isnan(scales), np.float32(0), scales)
    halves = np.ascontiguousarray(blocks[:, :2])
    if name == "IQ1_M":
        # Four bits in each of four words, the highest.
        parts = _words(blocks[:, 48:], "<u2") >> 12 << np.arange(0, 16, 4)
        halves = parts.sum(axis=1, keepdims=True).astype("<u2").view(np.uint8)
    found: Floats = halves.view("<f2").astype(np.float32)
    return found


def _places(blocks: Blocks, number: int, scales: Floats, table: Sequence[int]) -> Blocks:
    """Return places in a table by the numbers of blocks; `scales` are those of their groups if their float16 is 1."""
    plain = blocks.copy()
    if type_of(number).name == "IQ1_M":
        parts = _words(ONE[None], "<u2") >> np.arange(0, 16, 4) << 12 & 0xF000
        plain[:, 48:] = (_words(blocks[:, 48:], "<u2") & 0xFFF | parts).astype("<u2").view(np.uint8)
    else:
        plain[:, :2] = ONE
    values = numbers_of(plain, number).reshape(len(blocks), scales.shape[1], -1) / scales[:, :, None]
    place_of = np.zeros(256, np.uint8)
    place_of[np.array(table) & 255] = np.arange(len(table))
    return place_of[values.astype(np.int8).view(np.uint8)]
