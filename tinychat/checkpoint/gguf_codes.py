"""The codes of GGUF's types, with their scales and offsets, as the blocks of a file hold them.

A block has f16 numbers and codes (github.com/ggml-org/ggml, src/ggml-common.h). Types of 32 columns (Q4_0, Q4_1, Q5_0,
Q5_1, Q8_0) begin with a scale, and perhaps a minimum; those of 256 (Q2_K to Q6_K) have whole scales for
smaller groups, and minima that are subtracted. Binary and ternary ones have a scale for 64, 128 or 256 columns. The
package `gguf` knows the bits of most codes: these are its values of blocks whose scales are 1 and whose minima are 0.
Numbers of the types of `checkpoint.gguf_tables` are values of a table times a scale.
"""

import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.gguf_tables import ONE, TABLES, codes_in_table
from tinychat.checkpoint.gguf_types import OLDER_Q2_0, OWN_TYPES, codes_of_few_bits, numbers_of, type_of
from tinychat.checkpoint.group_codes import GroupCodes
from tinychat.models.passthrough import Form

FORMS = {
    "Q1_0": Form(1, "F16", 128),
    "Q2_0": Form(2, "F16", 64),
    "Q2_K": Form(2, "I8", 16, 256, offsets=True),
    "I2_S": Form(2, "I8", 128),
    "TQ1_0": Form(2, "F16", 256),
    "TQ2_0": Form(2, "F16", 256),
    "Q3_K": Form(4, "I8", 16, 256, offsets=True),
    "Q4_0": Form(4),
    "Q4_1": Form(4, offsets=True),
    "Q4_K": Form(4, "I8", 32, 256, offsets=True),
    "Q5_0": Form(8),
    "Q5_1": Form(8, offsets=True),
    "Q5_K": Form(8, "I8", 32, 256, offsets=True),
    "Q6_K": Form(8, "I8", 16, 256),
    "Q8_0": Form(8),
    **{name: kind.form for name, kind in TABLES.items()},
}
# The code of 0, of types without minima.
_ZEROS = {"TQ1_0": 1, "TQ2_0": 1, "Q4_0": 8, "Q5_0": 16, "Q6_K": 32, "Q8_0": 128}
# The 12 bytes of eight scales that are 1 and eight minima that are 0, six bits each.
_ONES_AND_ZEROS = np.array([1] * 4 + [0] * 4 + [1] * 4, np.uint8)
# Of Q3_K, the 12 bytes of sixteen scales that are 1: six bits each, 32 more than they mean.
_ONES_OF_Q3 = np.array([0b00010001] * 8 + [0b10101010] * 4, np.uint8)
# Where blocks have their float16, if not at their beginning.
_SCALES_AT = {"TQ1_0": 52, "TQ2_0": 64}
_SCALES_OF_Q6 = slice(192, 208)


def form_of(number: int) -> Form | None:
    """Return the form of a type's codes by its number in the file; None where no form holds them."""
    if number == OLDER_Q2_0:
        return Form(2, "F16", 128)
    return FORMS.get(type_of(number).name)


def codes_of(rows: NDArray[np.uint8], number: int) -> GroupCodes:
    """Return the codes of rows of blocks, uint8 [N, bytes], of a type that has a form; of I2_S without its scale."""
    from gguf.quants import Q4_K

    kind, size = type_of(number).name, type_of(number).bytes
    if number in OWN_TYPES:
        return GroupCodes(*codes_of_few_bits(rows, number), zero=1)
    if kind in TABLES:
        return codes_in_table(rows, number)
    N, zero = len(rows), _ZEROS.get(kind, 0)
    blocks = rows.reshape(-1, size)
    if kind == "Q3_K":
        return _codes_of_q3(blocks, number, N)
    plain = blocks.copy()
    scales, offsets, factors = _half(blocks, _SCALES_AT.get(kind, 0)), None, None
    if kind == "Q2_K":
        scales, offsets = (blocks[:, :16] & 15).astype(np.float32), -(blocks[:, :16] >> 4).astype(np.float32)
        factors = np.stack([_half(blocks, 80), _half(blocks, 82)], axis=2)
        plain[:, :16], plain[:, 80:82], plain[:, 82:84] = 1, ONE, 0
    elif kind == "Q6_K":
        scales = blocks[:, _SCALES_OF_Q6].view(np.int8).astype(np.float32)
        factors = np.repeat(_half(blocks, 208)[:, :, None], 2, axis=2)
        plain[:, _SCALES_OF_Q6], plain[:, 208:210] = 1, ONE
    elif kind in ("Q4_K", "Q5_K"):
        whole, minima = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
        scales, offsets = whole.astype(np.float32), -minima.astype(np.float32)
        factors = np.stack([_half(blocks, 0), _half(blocks, 2)], axis=2)
        plain[:, :2], plain[:, 2:4], plain[:, 4:16] = ONE, 0, _ONES_AND_ZEROS
    elif FORMS[kind].offsets:
        offsets = _half(blocks, 2)
        plain[:, :2], plain[:, 2:4] = ONE, 0
    else:
        at = _SCALES_AT.get(kind, 0)
        plain[:, at : at + 2] = ONE
    codes = (numbers_of(plain.reshape(N, -1), number) + zero).astype(np.uint8)
    offsets = None if offsets is None else offsets.reshape(N, -1)
    factors = None if factors is None else factors.reshape(N, -1, 2)
    return GroupCodes(codes, scales.reshape(N, -1), offsets, factors, zero)


def _codes_of_q3(blocks: NDArray[np.uint8], number: int, rows: int) -> GroupCodes:
    """Return the codes of blocks of Q3_K: 32 bytes of a bit of each, 64 of the other two bits, 12 of scales, a factor.

    Scales are whole, -32 to 31, and codes less 4 count.
    """
    ones, plain = blocks.copy(), blocks.copy()
    ones[:, :32], ones[:, 32:96], ones[:, 108:] = 255, 0b01010101, ONE
    plain[:, 96:108], plain[:, 108:] = _ONES_OF_Q3, ONE
    # Where all codes are 5, values are the scales, and where all scales are 1, they are codes less 4.
    scales, codes = numbers_of(ones, number)[:, ::16], numbers_of(plain, number) + 4
    # Of a scale of -32, the offset would be 128, which is no int8: such a group counts the other way round.
    is_lowest = scales == -32
    codes = np.where(np.repeat(is_lowest, 16, axis=1), 7 - codes, codes)
    scales, offsets = np.where(is_lowest, 32, scales), np.where(is_lowest, -96, -4 * scales)
    factors = np.repeat(_half(blocks, 108)[:, :, None], 2, axis=2)
    return GroupCodes(
        codes.astype(np.uint8).reshape(rows, -1),
        scales.reshape(rows, -1),
        offsets.reshape(rows, -1),
        factors.reshape(rows, -1, 2),
    )


def _half(blocks: NDArray[np.uint8], start: int) -> NDArray[np.float32]:
    """Return the float16 at a byte of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)
