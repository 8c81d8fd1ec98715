"""Caches of every type for tests, written and read without the kernels."""

from typing import NamedTuple

import numpy as np
import pytest
from kernels.kernel_inputs import LANES, round_up

from tinychat.kernels.buffers import CacheBuffers, LayerCache, empty_buffers
from tinychat.kernels.sizes import BLOCK, PER_LANE

KVS = ("bf16", "f16", "int8", "f32")
kvs = pytest.mark.parametrize("kv", KVS)
SHARED = {"bf16": np.uint16, "int8": np.int8}  # numbers of which several are an element
# By how much of a number, at most, storing it moves it; in int8 that is of the largest beside it.
HALF_ULP = {"bf16": 2.0**-8, "f16": 2.0**-11, "int8": 0.5 / 127 + 2.0**-16, "f32": 0.0}


def to_bf16(x):
    """Return float32 numbers rounded half away from zero to bfloat16."""
    return ((x.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)


def to_codes(x):
    """Return int8 codes of vectors [..., d] and their scales [...]: of 16 significant bits, rounded up."""
    peak = np.abs(x).max(axis=-1).astype(np.float32)
    bits = (peak / np.float32(127)).view(np.int32)
    scales = ((bits + 0xFF) & ~0xFF).view(np.float32)
    return np.rint(x / np.where(scales > 0, scales, 1)[..., None]).astype(np.int8), scales


def stored(x, kv):
    """Return vectors [..., d] as a cache of that type stores them, as float64."""
    x = x.astype(np.float32)
    if kv == "int8":
        codes, scales = to_codes(x)
        return codes * scales[..., None].astype(np.float64)
    return {"bf16": to_bf16, "f16": lambda x: x.astype(np.float16), "f32": lambda x: x}[kv](x).astype(np.float64)


def storage_error(x, kv):
    """Return by how much storing vectors [..., d] may move each number."""
    largest = np.abs(x).max(axis=-1, keepdims=True) if kv == "int8" else np.abs(x)
    return HALF_ULP[kv] * np.broadcast_to(largest, x.shape) + (2.0**-25 if kv == "f16" else 0)


class Pages(NamedTuple):
    """Blocks of a cache, and which of them, in which order, are one sequence's."""

    buffers: CacheBuffers
    table: np.ndarray

    @property
    def context(self):
        """Positions there are."""
        return len(self.table) * BLOCK

    def layer(self, number=0):
        """Return one layer as the kernels take it."""
        return LayerCache(*self.buffers, number)


def empty_cache(kv, G, context, d, layers=1):
    """Return blocks that are full of NaN; of codes, whose scales are NaN. They are out of order."""
    count = round_up(context, BLOCK) // BLOCK
    buffers = empty_buffers(kv, count + 2, layers, G, d)
    for buffer in buffers:
        buffer.view(np.uint8)[:] = 0xFF
    return Pages(buffers, np.random.default_rng(count).permutation(count + 2)[:count].astype(np.int32))


def fill_cache(kv, k, v):
    """Return a cache of one layer that holds k, v [S, G, d] at positions 0..S, and k, v as float64 of what it holds."""
    pages = fill_layers(kv, k[None], v[None])
    return pages, stored(k, kv), stored(v, kv)


def fill_layers(kv, k, v):
    """Return a cache that holds k, v [L, S, G, d]."""
    L, S, G, d = k.shape
    pages = empty_cache(kv, G, S, d, L)
    keys, values, scales = pages.buffers
    for s in range(S):
        block, i = pages.table[s // BLOCK], s % BLOCK
        key, value = keys[block, :, :, i // LANES, :, i % LANES], values[block]
        if kv == "bf16":
            halves = upper_half(k[:, s]).reshape(L, G, d // 2, 2)
            key[:] = halves[..., 0] | halves[..., 1].astype(np.uint32) << 16
            value.view(np.uint16).reshape(L, G, BLOCK // 2, -1, 2)[:, :, i // 2, :d, i % 2] = upper_half(v[:, s])
        elif kv == "int8":
            codes, scales[block, :, :, 0, i] = to_codes(k[:, s])
            key[:] = (codes ^ np.int8(-128)).reshape(L, G, d // 4, 4).view(np.int32)[..., 0]
            codes, scales[block, :, :, 1, i] = to_codes(v[:, s])
            value.view(np.int8).reshape(L, G, BLOCK // 4, -1, 4)[:, :, i // 4, :d, i % 4] = codes
        else:
            key[:], value[:, :, i, :d] = (as_stored(x[:, s], kv) for x in (k, v))
    if kv == "bf16" and S % 2:
        values[pages.table[S // BLOCK]].view(np.uint16).reshape(L, G, BLOCK // 2, -1, 2)[:, :, S % BLOCK // 2, :, 1] = 0
    return pages


def upper_half(x):
    return (to_bf16(x).view(np.uint32) >> 16).astype(np.uint16)


def as_stored(x, kv):
    return x.astype(np.float16).view(np.uint16) if kv == "f16" else x.astype(np.float32)


def read_keys(kv, pages, d, layer=0):
    """Return the keys of all positions as float64 [G, position, d]."""
    keys = pages.buffers.keys[pages.table, layer]
    keys = keys.view(SHARED[kv]).reshape(*keys.shape, -1) if kv in SHARED else keys[..., None]
    keys = keys ^ np.int8(-128) if kv == "int8" else keys
    G = keys.shape[1]
    keys = keys.transpose(1, 0, 2, 4, 3, 5).reshape(G, pages.context, d)
    return as_numbers(kv, keys, read_scales(pages, 0, layer))


def read_values(kv, pages, layer=0):
    """Return the values of all positions as float64 [G, position, padded d]."""
    values = np.ascontiguousarray(pages.buffers.values[pages.table, layer].transpose(1, 0, 2, 3))
    G, *_, padded = values.shape
    if kv in SHARED:
        shared = values.view(SHARED[kv]).reshape(G, -1, padded, PER_LANE[kv])
        values = shared.transpose(0, 1, 3, 2)
    return as_numbers(kv, values.reshape(G, pages.context, padded), read_scales(pages, 1, layer))


def read_scales(pages, kind, layer):
    """Return the scales of all positions, [G, position]."""
    scales = pages.buffers.scales[pages.table, layer, :, kind]
    return scales.transpose(1, 0, 2).reshape(scales.shape[1], -1)


def as_numbers(kv, stored, scales):
    """Return dequantized numbers [G, position, channel]."""
    if kv == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kv == "int8":
        return stored * scales[..., None].astype(np.float64)
    return (stored.view(np.float16) if kv == "f16" else stored).astype(np.float64)


def read_cache(kv, pages, S, d, layer=0):
    """Return keys and values of positions 0..S as float64 [S, G, d]."""
    k, v = read_keys(kv, pages, d, layer), read_values(kv, pages, layer)
    return tuple(np.ascontiguousarray(x.transpose(1, 0, 2)[:S, :, :d]) for x in (k, v))
