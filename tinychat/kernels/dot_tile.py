"""Register tiles of integers: weight codes times int8 activations, exactly; see `kernels.tile` for what a tile is."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from tinychat.kernels.dot4 import dot4
from tinychat.kernels.simd import F32, F32X16, I32, ROUNDER, constant, fused, i32x16
from tinychat.kernels.tile import address, load_splat, load_splats, unpack

# Integers that begin here are floats, `ROUNDER` above what they count.
ROUNDER_BITS = np.int32(np.float32(ROUNDER).view(np.int32))


@intrinsic
def seed_tile(typingctx, seeds, index, rows, tokens):
    """Return an integer tile whose accumulators begin at ``seeds[index + t]``."""
    tile = types.UniTuple(i32x16, len(rows) * len(tokens))

    def codegen(context, builder, signature, arguments):
        container, first, _, _ = arguments
        splats = load_splats(context, builder, signature.args[0], container, first, len(tokens), I32)
        return cgutils.pack_array(builder, splats * len(rows))

    return tile(seeds, types.intp, rows, tokens), codegen


@intrinsic
def dot(typingctx, tile, codes, activations, index):
    """Add to each accumulator lane the dot product of 4 codes and 4 int8 activations of its token.

    Token t's 4 activations are at ``index + 4 * t``; what code counts as 0 is `dot4.DOT_ZERO`.
    """
    rows, tokens = len(codes), len(tile) // len(codes)

    def codegen(context, builder, signature, arguments):
        sums, lines, container, first = arguments
        sums, lines = unpack(builder, tile, sums), unpack(builder, codes, lines)
        four = ir.Constant(first.type, 4)
        for t in range(tokens):
            pointer = address(context, builder, signature.args[2], container, first, four, t, I32)
            x = load_splat(builder, pointer, I32, 1)
            for r in range(rows):
                sums[r * tokens + t] = dot4(builder, sums[r * tokens + t], lines[r], x)
        return cgutils.pack_array(builder, sums)

    return tile(tile, codes, activations, types.intp), codegen


@intrinsic
def add_scaled(typingctx, tile, sums, row_scales, scales, index, tokens):
    """Return ``tile + (sums - ROUNDER) * row_scale * scales[index + t]``, whose first product is rounded once.

    The sums began at `ROUNDER_BITS` and count less than 2**22. Row scales are whole numbers of up to 8 bits, so that
    ``ROUNDER * row_scale`` is exact. Two operations where converting the sums would take a third.
    """

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        values, integers, factors = (unpack(builder, kind, v) for kind, v in zip(kinds, arguments[:3]))
        container, first = arguments[3:5]
        offsets = [builder.fmul(factor, constant(-ROUNDER)) for factor in factors]
        by_token = load_splats(context, builder, kinds[3], container, first, len(tokens), F32)
        result = []
        for i, (value, n) in enumerate(zip(values, integers)):
            r, t = divmod(i, len(tokens))
            scaled = fused(builder, builder.bitcast(n, F32X16), factors[r], offsets[r])
            result.append(fused(builder, scaled, by_token[t], value))
        return cgutils.pack_array(builder, result)

    return tile(tile, sums, row_scales, scales, types.intp, tokens), codegen
