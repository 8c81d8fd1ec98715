"""A thread's memory for linears on tile registers: its parts, in float32 from the beginning, each on a cache line."""

from tinychat.kernels.setup import AMX, AMX_MODEL, INSTRUCTION_SET

HAS_TILE_REGISTERS = INSTRUCTION_SET in (AMX, AMX_MODEL)

TILE = 256  # 32-bit numbers of a tile register
FACTORS_OF_GROUP = 3 * 16  # of 16 rows: scales, these times -ROUNDER, and offsets
# Weights that are unpacked at a time, into the first-level cache beside as many activations: bytes of codes, and groups
# if these are as small as can be.
SLICE_BYTES = 12288
MOST_GROUPS = SLICE_BYTES // 256
# Tiles of tokens that pass by a slice. Their totals wait in the second-level cache between two slices.
MOST_TILES, MOST_TOTALS = 16, 256
SPARE_TILES = 4

RING = 0  # sums, between their product and the floats
TOTALS = RING + 4 * TILE
SPARE = TOTALS + MOST_TOTALS * TILE
FACTORS = SPARE + SPARE_TILES * TILE
CODES = FACTORS + MOST_GROUPS * FACTORS_OF_GROUP
REGISTERS = CODES + SLICE_BYTES // 4  # where a model keeps the tile registers, then their configuration
BUFFER_FLOATS = REGISTERS + 8 * TILE + 16
