"""The types of a GGUF file's tensors: their names, the sizes of their blocks, and the numbers that these mean.

The package `gguf` knows most. Of others, which have one or two bits for each number, blocks are:

    Q1_0   128 columns: a scale, float16, then a bit for each column, the lowest first: 0 means -1, and 1 means 1
    Q2_0   64 columns: a scale, float16, then 16 bytes of four codes, the lowest bits first: 0 to 3 mean -1 to 2
           (github.com/ggml-org/llama.cpp, ggml/src/ggml-quants.c)
    Q2_0   of files that are older than that: 128 columns (github.com/PrismML-Eng/llama.cpp)
    I2_S   128 numbers: 32 bytes of four such codes, the highest bits first, of numbers that are 32 apart; the scale,
           float32, is that of the whole tensor, and stands behind it in 32 bytes of its own. So its converter and
           its quantizer on x86 write them, and nothing in a file tells those of ARM, which differ
           (github.com/microsoft/BitNet)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GgufType:
    """A type of tensors."""

    name: str
    columns: int  # of a block
    bytes: int  # of a block
    tail: int = 0  # bytes behind the whole tensor


Q1_0, Q2_0, I2_S = 41, 42, 36
# In the place of 42 where blocks have 128 columns; no file has this number.
OLDER_Q2_0 = -42
OWN_TYPES = {
    Q1_0: GgufType("Q1_0", 128, 18),
    Q2_0: GgufType("Q2_0", 64, 18),
    OLDER_Q2_0: GgufType("Q2_0", 128, 34),
    I2_S: GgufType("I2_S", 128, 32, 32),
}


def type_of(number: int) -> GgufType:
    """Return a type by its number in the file; ValueError where it is not known."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if number in OWN_TYPES:
        return OWN_TYPES[number]
    known = GGMLQuantizationType(number)
    return GgufType(known.name, *GGML_QUANT_SIZES[known])


def numbers_of(rows: NDArray[np.uint8], number: int) -> NDArray[np.float32]:
    """Return the numbers of rows of blocks, float32 [N, K], of uint8 [N, bytes]; of I2_S without its scale.

    NotImplementedError for types that llama.cpp only computes with.
    """
    if number in OWN_TYPES:
        codes, scales = codes_of_few_bits(rows, number)
        numbers = codes.astype(np.float32) - np.float32(1)
        return numbers * np.repeat(scales, numbers.shape[1] // scales.shape[1], axis=1)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    found: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType(number)).astype(np.float32, copy=False)
    return found


def codes_of_few_bits(rows: NDArray[np.uint8], number: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return codes [N, K], of which 1 counts as 0, and scales [N, groups] of rows of blocks of one of `OWN_TYPES`."""
    N, count = len(rows), rows.shape[1] // OWN_TYPES[number].bytes
    blocks, columns = rows.reshape(N * count, OWN_TYPES[number].bytes), count * OWN_TYPES[number].columns
    if number == I2_S:
        codes = blocks[:, None, :] >> np.array([[6], [4], [2], [0]], np.uint8) & 3
        return codes.astype(np.uint8).reshape(N, columns), np.ones((N, 1), np.float32)
    scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    if number == Q1_0:
        codes = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little") << 1
    else:
        codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return codes.astype(np.uint8).reshape(N, columns), scales.reshape(N, count)
