"""Keys and values in the KV cache, in each of its types.

    f32    float32
    f16    float16, carried as uint16
    bf16   bfloat16, two to a lane of uint32: attention multiplies them in pairs (`kernels.bfloat16`)
    int8   codes from -127 to 127, four to a lane of int32, and one scale for each key and for each value of a head:
           attention multiplies them as integers (`kernels.quads`), those of keys stored plus 128

Memory is divided into blocks of 64 positions, each with all layers and KV heads of those positions (the pages of Kwon
et al., 2023, https://arxiv.org/abs/2309.06180). A sequence's table lists its blocks in order; so sequences may share a
prefix, and grow without a copy.

Of one block, layer and KV head, keys [4, d, 16] have a key in a lane, so that 16 scores come out of a vector side by
side; values [64, d rounded up to 16] have a channel in a lane. Values of latent attention are narrower, whole vectors.
In bf16 a lane is a pair: of channels in keys [4, d/2, 16], of positions in values [32, padded d]; in int8 it is four of
them. Scales, float32 [2, 64], are keys' then values'; [2, 0] in the other types. Three axes come before: blocks, layers
L, KV heads G.
"""

import numpy as np
from numba import types

from tinychat.kernels.bfloat16 import load_half, store_half
from tinychat.kernels.buffers import LayerCache, TwoCaches
from tinychat.kernels.jit import always_inline, always_inline_by_type, by_type, is_kind
from tinychat.kernels.memory import load_byte, load_f32x64, load_one, store_byte, store_one
from tinychat.kernels.sizes import BLOCK, LANES

HALVES, PAIRS, QUADS = types.uint16, types.uint32, types.int32
SHARED = {PAIRS: 2, QUADS: 4}  # numbers in a lane
KEY, VALUE = 0, 1  # which of the scales
LARGEST_CODE, LARGEST_HALF = np.float32(127), np.float32(65504)


@by_type
def per_lane(cache):
    """Return how many numbers share a lane."""
    count = SHARED.get(element_of(cache), 1)
    return lambda cache: count


def element_of(cache: types.NamedTuple) -> types.Type:
    """Return the element type of a cache's Numba type."""
    return cache.types[0].dtype


@always_inline_by_type
def layer_cache(cache, layer):
    """Return one layer of a cache; of two caches, those of the second are numbered after those of the first."""

    def two(cache, layer):
        return TwoCaches(one_layer(cache.narrow, layer), one_layer(cache.wide, layer - cache.narrow.keys.shape[1]))

    return two if is_kind(cache, TwoCaches) else lambda cache, layer: one_layer(cache, layer)


@always_inline
def one_layer(cache, layer):
    """Return one layer of a cache of heads of one size."""
    return LayerCache(cache.keys, cache.values, cache.scales, layer)


@always_inline_by_type
def narrow_cache(cache):
    """Return the layer's cache where heads are narrow."""
    return (lambda cache: cache.narrow) if is_kind(cache, TwoCaches) else lambda cache: cache


@always_inline_by_type
def wide_cache(cache):
    """Return the layer's cache where heads are wide."""
    return (lambda cache: cache.wide) if is_kind(cache, TwoCaches) else lambda cache: cache


@always_inline
def head_size(cache):
    """Return the size of a layer's heads."""
    return cache.keys.shape[4] * per_lane(cache)


@always_inline
def value_width(cache, d):
    """Return the width of values beside keys of width d: as wide, or narrower by whole vectors."""
    return min(d, cache.values.shape[4])


@always_inline
def head_of(cache, block, g):
    """Return the index of a layer's KV head in a block, among those of all blocks and layers."""
    return (block * cache.keys.shape[1] + cache.layer) * cache.keys.shape[2] + g


@always_inline
def key_offset(cache, head, i):
    """Return the index of the first number of key `i` of a head's block; its next lane is ``LANES * per_lane`` on."""
    channels, shared = cache.keys.shape[4], per_lane(cache)
    return ((head * (BLOCK // LANES) + i // LANES) * channels * LANES + i % LANES) * shared


@always_inline
def value_offset(cache, head, i):
    """Return the index of the first number of value `i` of a head's block; its next channel is ``per_lane`` on."""
    padded, shared = cache.values.shape[4], per_lane(cache)
    return (head * (BLOCK // shared) + i // shared) * padded * shared + i % shared


@by_type
def store_number(buffer, index, x, scale, kind):
    """Store a number of a key or a value, rounded to the type of the buffer; only codes have a scale."""

    def floats(buffer, index, x, scale, kind):
        store_one(buffer, index, x)

    def halves(buffer, index, x, scale, kind):
        # Larger numbers would become infinite, and reach rows that must not see them: 0 times infinity is NaN.
        x = LARGEST_HALF if x > LARGEST_HALF else x
        store_one(buffer, index, -LARGEST_HALF if x < -LARGEST_HALF else x)

    def pairs(buffer, index, x, scale, kind):
        store_half(buffer, index, x)

    def codes(buffer, index, x, scale, kind):
        code = np.int32(np.rint(x / scale)) if scale > 0 else np.int32(0)
        store_byte(buffer, index, code ^ key_bit(kind))

    return {HALVES: halves, PAIRS: pairs, QUADS: codes}.get(buffer.dtype, floats)


@always_inline
def key_bit(kind):
    """Return the bit of a byte in which a stored key's code, which is one plus 128, differs from a value's."""
    return 128 if kind == KEY else 0


@by_type
def load_number(buffer, index, scale, kind):
    """Return a stored number of a key or a value."""

    def floats(buffer, index, scale, kind):
        return load_one(buffer, index)

    def pairs(buffer, index, scale, kind):
        return load_half(buffer, index)

    def codes(buffer, index, scale, kind):
        return np.float32(np.int8(load_byte(buffer, index) ^ key_bit(kind))) * scale

    return {PAIRS: pairs, QUADS: codes}.get(buffer.dtype, floats)


@always_inline
def code_scale(x, index, d):
    """Return the scale at which the largest of d numbers of `x` has a code of 127.

    Rounded up to 16 significant bits: a code times its scale is then exact, and storing a loaded vector again finds the
    same scale, unless that is below 2**-126.
    """
    peak = np.float32(0)
    for i in range(d):
        peak = np.maximum(peak, np.abs(load_one(x, index + i)))  # which a NaN survives
    bits = np.float32(peak / LARGEST_CODE).view(np.int32)
    return np.int32((bits + 0xFF) & ~0xFF).view(np.float32)


@always_inline
def scale_index(head, kind, i):
    """Return the index of the scale of a key or value; kind : KEY or VALUE."""
    return (head * 2 + kind) * BLOCK + i


@by_type
def new_scale(cache, kind, head, i, x, index, d):
    """Return the scale to store d numbers of `x` with, and store it; 1 in types without scales."""

    def codes(cache, kind, head, i, x, index, d):
        scale = code_scale(x, index, d)
        store_one(cache.scales, scale_index(head, kind, i), scale)
        return scale

    return codes if element_of(cache) == QUADS else lambda cache, kind, head, i, x, index, d: np.float32(1)


@by_type
def scale_of(cache, kind, head, i):
    """Return the scale of a key or value; 1 in types without scales."""
    if element_of(cache) == QUADS:
        return lambda cache, kind, head, i: load_one(cache.scales, scale_index(head, kind, i))
    return lambda cache, kind, head, i: np.float32(1)


@always_inline_by_type
def scaled(cache, head, weights):
    """Return 64 weights times the scales of the values of a head's block, where there are any."""

    def codes(cache, head, weights):
        return weights * load_f32x64(cache.scales, scale_index(head, VALUE, 0))

    return codes if element_of(cache) == QUADS else lambda cache, head, weights: weights


@always_inline
def store_key(cache, head, i, x, index, d):
    """Store d numbers of `x`, from flat element `index` on, as key `i` of a head's block."""
    scale, shared = new_scale(cache, KEY, head, i, x, index, d), per_lane(cache)
    offset = key_offset(cache, head, i)
    for c in range(0, d, shared):
        for half in range(shared):
            store_number(cache.keys, offset + c * LANES + half, load_one(x, index + c + half), scale, KEY)


@always_inline
def store_value(cache, head, i, x, index, d, last):
    """Store d numbers of `x`, from flat element `index` on, as value `i` of a head's block, zero beyond.

    last : no later position is being stored. Where positions are paired, the missing one then becomes zero: attention
    reads whole pairs, and 0 times what is no number is none. Any code times 0 is 0.
    """
    scale, shared, padded = new_scale(cache, VALUE, head, i, x, index, d), per_lane(cache), cache.values.shape[4]
    offset = value_offset(cache, head, i)
    for c in range(d):
        store_number(cache.values, offset + c * shared, load_one(x, index + c), scale, VALUE)
    for c in range(d, padded):
        store_number(cache.values, offset + c * shared, np.float32(0), scale, VALUE)
    if last and shared == 2 and i % 2 == 0:
        for c in range(padded):
            store_number(cache.values, offset + c * 2 + 1, np.float32(0), scale, VALUE)


@always_inline
def load_key(cache, head, i, row, d):
    """Copy a key to ``row[:d]``."""
    scale, offset, shared = scale_of(cache, KEY, head, i), key_offset(cache, head, i), per_lane(cache)
    for c in range(d):
        row[c] = load_number(cache.keys, offset + (c - c % shared) * LANES + c % shared, scale, KEY)


@always_inline
def load_value(cache, head, i, row, d):
    """Copy a value to ``row[:d]``."""
    scale, offset, shared = scale_of(cache, VALUE, head, i), value_offset(cache, head, i), per_lane(cache)
    for c in range(d):
        row[c] = load_number(cache.values, offset + c * shared, scale, VALUE)
