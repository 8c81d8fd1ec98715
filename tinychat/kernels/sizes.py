"""Sizes of vectors, tiles and blocks on this processor."""

from typing import Any

import llvmlite.binding as llvm
import numpy as np

from tinychat import processor
from tinychat.kernels.amx_buffer import HAS_TILE_REGISTERS
from tinychat.kernels.setup import ISA

LANES = 16  # of a vector of 32-bit numbers

# Tile shapes: tuples of these lengths. Sixteen sums fit into the 32 registers of AVX-512, four sums and four totals
# into the 16 of AVX2, and sums of five tokens, of two registers each, into those of AVX-VNNI: each number of a token is
# loaded once for both. Totals wait in memory while a group is summed: cheaper than lookups for fewer tokens.
# Tiles of fewer tokens compute less in vain, in less time than the weights take to be read. A tile is one row block
# high: two are two streams of memory, which the processor prefetches badly (0.6 x the speed for one token or a few).
# Of a halved tile eight rows are summed, then the others: twelve sums take 24 of the 32 registers of NEON, and a code
# is taken apart for twelve tokens, not for six.
TILES = {
    "avx512vnni": (3, 5, 8, 16),
    "avxvnni": (3, 5, 5, 5),
    "neon-i8mm": (2, 4, 8, 12),
    "neon-dotprod": (2, 4, 8, 12),
}
HALVED = ISA in ("neon-i8mm", "neon-dotprod")
# Whether what is used twice is loaded twice, since a tile's sums leave no register for it meanwhile.
LOADS_AGAIN = ISA != "avx512vnni"
ONE_TOKEN = (0,)
ONE_ROW = (0,)
TILE_LENGTHS = TILES.get(ISA, (4, 4, 4, 4))
FEW_TOKENS, SEVERAL_TOKENS, SOME_TOKENS, TOKENS = ((0,) * count for count in TILE_LENGTHS)
# Taking codes apart, once for a tile, lasts as long as the products of so many tokens: by the port model 0.5 on Zen 5,
# 1.3 on Golden Cove, 1.6 and 2.2 on Apple's M1 and M2; measured on Zen 4, 0.5.
UNPACKING = 2 if ISA in ("neon-i8mm", "neon-dotprod") else 1
TILE_FLOATS = len(TOKENS) * LANES
# Of the sums of a group's 32 columns, which one-bit codes of one token are looked up in (`kernels.column_sums`).
SUMS_FLOATS = 64
# Whether tiles of many tokens are made of products of two small matrices, of whose rows eight columns stand together.
PAIRED = ISA == "neon-i8mm"
RUN = 8 if PAIRED else 4  # columns of a token that stand together in the input of a linear

# The KV cache: the storage of each of its types, numbers that share a lane, positions of a block.
STORAGE: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint32),
    "f16": np.dtype(np.uint16),
    "int8": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
}
PER_LANE = {"bf16": 2, "int8": 4}
BLOCK = 64
# Distances of weights that are prefetched, into the second-level cache and into the first. On a Xeon, which prefetches
# by itself, decoding takes 1.4 times as long without, and 1.05 times as long with those into the first alone.
FAR_BYTES, NEAR_BYTES = 8192, 1024
# Zen 4 reads ahead best by itself where one token has little to compute meanwhile: two cores read codes of four bits at
# 32 GB/s with a prefetch for each line, and at 35, like plain reads, with one for four lines; codes of eight bits, too.
# Four bits of fewer bytes than `LONG_STREAM` gain by a prefetch for each line, as do those with offsets, and all
# weights where there are a few tokens.
READS_AHEAD = llvm.get_host_cpu_name() == "znver4"
LONG_STREAM = 1 << 20
SNAPSHOT = 512  # positions from one snapshot of a state to the next

# Whether AVX-512 has a shuffle of 64 bytes.
HAS_VBMI = ISA == "avx512vnni" and "avx512vbmi" in processor.features()
HAS_BF16 = ISA == "avx512vnni" and "avx512bf16" in processor.features()
# AMD's processors make 32 products in the time of an fma's 16. Intel's take four times as long for them: two cycles,
# measured on Emerald Rapids, where two fma take one. Tile registers, or a model of them, take floats.
MULTIPLIES_PAIRS = HAS_BF16 and not HAS_TILE_REGISTERS and llvm.get_host_cpu_name().startswith("znver")

# Attention: positions of a chunk, and rows of an item.
CHUNK = 512
ITEM_ROWS = 48  # whole tiles of any shape; a multiple of 16 too
# Each chunk is a work tile if there are no more items than this for each thread.
ITEMS_PER_THREAD = 8
