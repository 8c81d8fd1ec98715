"""Products of a group of a weight's codes and activations, by the kind of weight and the tile.

Integers, exact, so in any order: one token and many, halves of a row block and pairs of tokens, get the same sums.
"""

from tinychat.kernels.codes import high_codes, look_up_high, look_up_low, low_codes, whole_codes
from tinychat.kernels.dot import dot, dot_line_pairs, dot_lines, dot_pairs, dot_small
from tinychat.kernels.jit import always_inline, always_inline_by_type
from tinychat.kernels.memory import prefetch, prefetch_far
from tinychat.kernels.sizes import FAR_BYTES, HALVED, NEAR_BYTES, READS_AHEAD
from tinychat.kernels.sums import is_paired, lower_half, upper_half, whole_tile
from tinychat.kernels.weight_access import TableRows, codes_of_line, load_again_for, load_for
from tinychat.kernels.weights import Affine1Weight, Affine2Weight, Affine4Weight


@always_inline
def prefetch_next(packed, index):
    """Prefetch lines of a weight, `FAR_BYTES` and `NEAR_BYTES` after byte `index`."""
    prefetch_far(packed, index + FAR_BYTES)
    prefetch(packed, index + NEAR_BYTES)


@always_inline_by_type
def dot_few_bits(weight, sums, first, codes, index, tokens):
    """Add to `sums` the products of one line of codes of one or two bits.

    Of one token the nearer line is not prefetched: on Zen 4 it is 1.1 times as fast then with two bits, and slower by a
    fifth without either.
    """
    one_token = len(tokens) == 1

    def added(weight, sums, first, codes, index, tokens):
        line = load_for(sums, weight.packed, first)
        if one_token:
            prefetch_far(weight.packed, first + FAR_BYTES)
        else:
            prefetch_next(weight.packed, first)
        return dot_lines(sums, codes_of_line(weight, line), codes, index)

    return added


@always_inline_by_type
def dot_rows(weight, sums, first, lines, codes, index, tokens):
    """Add to `sums`, of all rows or of half of them, the products of `lines` lines of which theirs begin at `first`."""

    def looked_up(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            line = load_for(sums, weight.packed, first + j * 64)
            prefetch_next(weight.packed, first + j * 64)
            x = index + j * 8 * len(tokens)
            sums = dot(sums, look_up_low(weight.table, line), codes, x)
            line = load_again_for(sums, line, weight.packed, first + j * 64)
            sums = dot(sums, look_up_high(weight.table, line), codes, x + 4 * len(tokens))
        return sums

    def affine4(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            line = load_for(sums, weight.packed, first + j * 64)
            if len(tokens) == 1:
                prefetch_next(weight.packed, first + j * 64)
            x = index + j * 8 * len(tokens)
            sums = dot_small(sums, low_codes(line), codes, x)
            sums = dot_small(sums, high_codes(line), codes, x + 4 * len(tokens))
        return sums

    def affine2(weight, sums, first, lines, codes, index, tokens):
        sums = dot_few_bits(weight, sums, first, codes, index, tokens)
        # Two lines are 32 columns, of which no input's group has more.
        return dot_few_bits(weight, sums, first + 64, codes, index + 16 * len(tokens), tokens) if lines == 2 else sums

    def affine1(weight, sums, first, lines, codes, index, tokens):
        return dot_few_bits(weight, sums, first, codes, index, tokens)

    def int8(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            line = load_for(sums, weight.packed, first + j * 64)
            if not (READS_AHEAD and len(tokens) == 1):
                prefetch_next(weight.packed, first + j * 64)
            elif j % 4 == 0:
                prefetch_far(weight.packed, first + j * 64 + FAR_BYTES)
            sums = dot(sums, whole_codes(line), codes, index + j * 4 * len(tokens))
        return sums

    kinds = {Affine1Weight: affine1, Affine2Weight: affine2, Affine4Weight: affine4, TableRows: looked_up}
    return kinds.get(weight.instance_class, int8)


@always_inline_by_type
def dot_paired_rows(weight, sums, first, lines, codes, index, tokens):
    """Add products to paired sums, as `dot_rows`."""

    def looked_up(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            line = load_for(sums, weight.packed, first + j * 64)
            prefetch_next(weight.packed, first + j * 64)
            low, high = look_up_low(weight.table, line), look_up_high(weight.table, line)
            sums = dot_pairs(sums, low, high, codes, index + j * 8 * len(tokens))
        return sums

    def affine4(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            line = load_for(sums, weight.packed, first + j * 64)
            sums = dot_pairs(sums, low_codes(line), high_codes(line), codes, index + j * 8 * len(tokens))
        return sums

    def few_bits(weight, sums, first, lines, codes, index, tokens):
        for j in range(lines):
            parts = codes_of_line(weight, load_for(sums, weight.packed, first + j * 64))
            sums = dot_line_pairs(sums, parts, codes, index + j * 4 * len(parts) * len(tokens))
        return sums

    def int8(weight, sums, first, lines, codes, index, tokens):
        for j in range(0, lines, 2):
            at = first + j * 64
            prefetch_next(weight.packed, at)
            prefetch_next(weight.packed, at + 64)
            line, next_line = load_for(sums, weight.packed, at), load_for(sums, weight.packed, at + 64)
            sums = dot_pairs(sums, line, next_line, codes, index + j * 4 * len(tokens))
        return sums

    kinds = {Affine1Weight: few_bits, Affine2Weight: few_bits, Affine4Weight: affine4, TableRows: looked_up}
    return kinds.get(weight.instance_class, int8)


@always_inline_by_type
def dot_group(weight, sums, first, lines, codes, index, tokens):
    """Add to the tile `sums` the products of one weight group: `lines` lines from byte `first` on.

    weight : of `rows_of`. A line is 4 columns of int8, 8 of four bits, 16 of two, 32 of one.
    """
    count = len(tokens)
    dot_some = dot_paired_rows if is_paired(count) else dot_rows

    def whole(weight, sums, first, lines, codes, index, tokens):
        return dot_some(weight, sums, first, lines, codes, index, tokens)

    def halved(weight, sums, first, lines, codes, index, tokens):
        lower = dot_some(weight, lower_half(sums), first, lines, codes, index, tokens)
        upper = dot_some(weight, upper_half(sums), first + 32, lines, codes, index, tokens)
        return whole_tile(lower, upper)

    return halved if HALVED and count > 1 else whole
