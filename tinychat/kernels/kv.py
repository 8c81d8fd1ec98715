"""What the KV cache keeps of a key and a value, in each of its types.

    f32    float32
    f16    float16, carried as uint16
    bf16   bfloat16, two to a lane of uint32: attention multiplies them in pairs (`kernels.bfloat16`)
    int8   int8, code times scale, one scale for each key and for each value of a head

Keys [G, context/16, d, 16] have a key in a lane, so that 16 scores come out of a vector side by side; values
[G, context, d rounded up to 16] have a channel in a lane. In bf16 a lane is a pair: of channels in keys [G, context/16,
d/2, 16], of positions in values [G, context/2, padded d]. Scales, float32 [G, 2, context], are keys' then values';
[G, 2, 0] in the other types. The cache of a whole model has one more axis, the layer, in front.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import types

from tinychat.kernels.bfloat16 import load_half, store_half
from tinychat.kernels.jit import by_type, inlined, inlined_by_type
from tinychat.kernels.memory import load_code, load_f32x64, load_one, store_code, store_one
from tinychat.kernels.simd import LANES, multiply

STORAGE: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint32),
    "f16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
    "f32": np.dtype(np.float32),
}
HALVES, PAIRS, CODES = types.uint16, types.uint32, types.int8
PER_LANE = {"bf16": 2}
KEY, VALUE = 0, 1  # which of the scales
LARGEST_CODE, LARGEST_HALF = np.float32(127), np.float32(65504)


class CacheBuffers(NamedTuple):
    """Keys, values and scales, of all layers or of one."""

    keys: np.ndarray
    values: np.ndarray
    scales: np.ndarray


def empty_buffers(kv: str, heads: tuple[int, ...], context: int, d: int) -> CacheBuffers:
    """Return zeros for `heads` heads of size d, `context` a multiple of 64: attention reads whole blocks.

    Zeros from the system: pages come into being when they are written.
    """
    shared, padded = PER_LANE.get(kv, 1), -(-d // LANES) * LANES
    return CacheBuffers(
        np.zeros((*heads, context // LANES, d // shared, LANES), STORAGE[kv]),
        np.zeros((*heads, context // shared, padded), STORAGE[kv]),
        np.zeros((*heads, 2, context if kv == "int8" else 0), np.float32),
    )


@by_type
def per_lane(cache):
    """Return how many numbers share a lane."""
    count = 2 if element_of(cache) == PAIRS else 1
    return lambda cache: count


def element_of(cache: types.NamedTuple) -> types.Type:
    """Return the element type of a cache's Numba type."""
    return cache.types[0].dtype


@inlined
def key_place(cache, g, position):
    """Return where a key begins, counted in numbers; its next lane is ``LANES * per_lane`` on."""
    keys, shared = cache.keys, per_lane(cache)
    return ((g * keys.shape[1] + position // LANES) * keys.shape[2] * LANES + position % LANES) * shared


@inlined
def value_place(cache, g, position):
    """Return where a value begins, counted in numbers; its next channel is ``per_lane`` on."""
    values, shared = cache.values, per_lane(cache)
    return (g * values.shape[1] + position // shared) * values.shape[2] * shared + position % shared


@by_type
def store_number(buffer, index, x, scale):
    """Store a number, rounded to what the buffer can hold; only codes have a scale."""

    def floats(buffer, index, x, scale):
        store_one(buffer, index, x)

    def halves(buffer, index, x, scale):
        # Infinity, which larger numbers become, would reach rows that must not see it: 0 times it is no number.
        x = LARGEST_HALF if x > LARGEST_HALF else x
        store_one(buffer, index, -LARGEST_HALF if x < -LARGEST_HALF else x)

    def pairs(buffer, index, x, scale):
        store_half(buffer, index, x)

    def codes(buffer, index, x, scale):
        store_code(buffer, index, np.int8(np.rint(x / scale)) if scale > 0 else np.int8(0))

    return {HALVES: halves, PAIRS: pairs, CODES: codes}.get(buffer.dtype, floats)


@by_type
def load_number(buffer, index, scale):
    """Return a stored number."""

    def floats(buffer, index, scale):
        return load_one(buffer, index)

    def pairs(buffer, index, scale):
        return load_half(buffer, index)

    def codes(buffer, index, scale):
        return np.float32(load_code(buffer, index)) * scale

    return {PAIRS: pairs, CODES: codes}.get(buffer.dtype, floats)


@inlined
def code_scale(x, place, d):
    """Return the scale at which the largest of d numbers of `x` has a code of 127.

    Rounded up to 16 significant bits: a code times its scale is then exact, and storing what was loaded finds the same
    scale, unless that is below 2**-126.
    """
    peak = np.float32(0)
    for i in range(d):
        peak = np.maximum(peak, np.abs(load_one(x, place + i)))  # which a NaN survives
    bits = np.float32(peak / LARGEST_CODE).view(np.int32)
    return np.int32((bits + 0xFF) & ~0xFF).view(np.float32)


@by_type
def new_scale(cache, kind, g, position, x, place, d):
    """Return the scale to store d numbers of `x` with, noting it; 1 where there are none. kind : KEY or VALUE."""

    def codes(cache, kind, g, position, x, place, d):
        scale = code_scale(x, place, d)
        cache.scales[g, kind, position] = scale
        return scale

    return codes if element_of(cache) == CODES else lambda cache, kind, g, position, x, place, d: np.float32(1)


@by_type
def scale_of(cache, kind, g, position):
    """Return the scale of a key or value; 1 where there are none."""
    if element_of(cache) == CODES:
        return lambda cache, kind, g, position: cache.scales[g, kind, position]
    return lambda cache, kind, g, position: np.float32(1)


@inlined_by_type
def scaled(cache, kind, g, position, x):
    """Return 64 scores or weights times the scales of the keys or values of 64 positions, where they have any."""

    def codes(cache, kind, g, position, x):
        first = (g * 2 + kind) * cache.scales.shape[2] + position
        return multiply(x, load_f32x64(cache.scales, first))

    return codes if element_of(cache) == CODES else lambda cache, kind, g, position, x: x


@inlined
def store_key(cache, g, position, x, place, d):
    """Store d numbers of `x`, from flat element `place` on, as a key."""
    scale, shared = new_scale(cache, KEY, g, position, x, place, d), per_lane(cache)
    there = key_place(cache, g, position)
    for i in range(0, d, shared):
        for c in range(shared):
            store_number(cache.keys, there + i * LANES + c, load_one(x, place + i + c), scale)


@inlined
def store_value(cache, g, position, x, place, d, last):
    """Store d numbers of `x`, from flat element `place` on, as a value, zero beyond.

    last : no later position is being stored: where positions are paired, the one that is still missing becomes zero,
    since attention reads whole pairs.
    """
    scale, shared = new_scale(cache, VALUE, g, position, x, place, d), per_lane(cache)
    there = value_place(cache, g, position)
    for i in range(d):
        store_number(cache.values, there + i * shared, load_one(x, place + i), scale)
    for i in range(d, cache.values.shape[2]):
        store_number(cache.values, there + i * shared, np.float32(0), scale)
    if last and position % shared < shared - 1:
        for i in range(cache.values.shape[2]):
            store_number(cache.values, there + i * shared + 1, np.float32(0), scale)


@inlined
def load_key(cache, g, position, row, d):
    """Copy a key to ``row[:d]``."""
    scale, there, shared = scale_of(cache, KEY, g, position), key_place(cache, g, position), per_lane(cache)
    for i in range(d):
        row[i] = load_number(cache.keys, there + (i - i % shared) * LANES + i % shared, scale)


@inlined
def load_value(cache, g, position, row, d):
    """Copy a value to ``row[:d]``."""
    scale, there, shared = scale_of(cache, VALUE, g, position), value_place(cache, g, position), per_lane(cache)
    for i in range(d):
        row[i] = load_number(cache.values, there + i * shared, scale)
