"""Caches of every type for tests, written and read without the kernels."""

import numpy as np
import pytest
from kernels.kernel_inputs import LANES, round_up

from tinychat.kernels.kv import CacheBuffers, empty_buffers

KVS = ("bf16", "f16", "int8", "f32")
kvs = pytest.mark.parametrize("kv", KVS)
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


def kept(x, kv):
    """Return what a cache of that type keeps of vectors [..., d], as float64."""
    x = x.astype(np.float32)
    if kv == "int8":
        codes, scales = to_codes(x)
        return codes * scales[..., None].astype(np.float64)
    return {"bf16": to_bf16, "f16": lambda x: x.astype(np.float16), "f32": lambda x: x}[kv](x).astype(np.float64)


def storage_error(x, kv):
    """Return by how much storing vectors [..., d] may move each number."""
    largest = np.abs(x).max(axis=-1, keepdims=True) if kv == "int8" else np.abs(x)
    return HALF_ULP[kv] * np.broadcast_to(largest, x.shape) + (2.0**-25 if kv == "f16" else 0)


def empty_cache(kv, G, context, d):
    """Return one layer's buffers, full of what is no number; of codes, whose scales are none."""
    buffers = empty_buffers(kv, (G,), round_up(context, 64), d)
    for buffer in buffers:
        buffer.view(np.uint8)[:] = 0xFF
    return buffers


def key_places(kv, buffers):
    """Return a view of the keys as [G, position, d]."""
    keys = buffers.keys
    if kv == "bf16":
        G, blocks, half, _ = keys.shape
        halves = keys.view(np.uint16).reshape(G, blocks, half, LANES, 2)
        return halves.transpose(0, 1, 3, 2, 4)
    return keys.transpose(0, 1, 3, 2)


def fill_cache(kv, k, v):
    """Return buffers that hold k, v [S, G, d] at positions 0..S, and k, v as float64 of what they hold."""
    S, G, d = k.shape
    buffers = empty_cache(kv, G, S, d)
    keys, values = key_places(kv, buffers), buffers.values
    for s in range(S):
        block, lane = divmod(s, LANES)
        if kv == "bf16":
            keys[:, block, lane] = upper_half(k[s]).reshape(G, d // 2, 2)
            values.view(np.uint16).reshape(G, -1, values.shape[2], 2)[:, s // 2, :d, s % 2] = upper_half(v[s])
        elif kv == "int8":
            (keys[:, block, lane], buffers.scales[:, 0, s]) = to_codes(k[s])
            (values[:, s, :d], buffers.scales[:, 1, s]) = to_codes(v[s])
        else:
            keys[:, block, lane], values[:, s, :d] = (as_stored(x[s], kv) for x in (k, v))
    if kv == "bf16" and S % 2:
        values.view(np.uint16).reshape(G, -1, values.shape[2], 2)[:, S // 2, :, 1] = 0
    return buffers, kept(k, kv), kept(v, kv)


def upper_half(x):
    return (to_bf16(x).view(np.uint32) >> 16).astype(np.uint16)


def as_stored(x, kv):
    return x.astype(np.float16).view(np.uint16) if kv == "f16" else x.astype(np.float32)


def read_keys(kv, buffers, d):
    """Return the keys of all positions as float64 [G, position, d]."""
    keys = key_places(kv, buffers).reshape(buffers.keys.shape[0], -1, d)
    return as_numbers(kv, keys, buffers.scales[:, 0])


def read_values(kv, buffers):
    """Return the values of all positions as float64 [G, position, padded d]."""
    values = buffers.values
    if kv == "bf16":
        G, pairs, padded = values.shape
        halves = values.view(np.uint16).reshape(G, pairs, padded, 2)
        values = halves.transpose(0, 1, 3, 2).reshape(G, 2 * pairs, padded)
    return as_numbers(kv, values, buffers.scales[:, 1])


def as_numbers(kv, stored, scales):
    """Return what numbers [G, position, channel] stand for."""
    if kv == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kv == "int8":
        return stored * scales[..., None].astype(np.float64)
    return (stored.view(np.float16) if kv == "f16" else stored).astype(np.float64)


def read_cache(kv, buffers, S, d):
    """Return keys and values of positions 0..S as float64 [S, G, d]."""
    k, v = read_keys(kv, buffers, d), read_values(kv, buffers)
    return tuple(np.ascontiguousarray(x.transpose(1, 0, 2)[:S, :, :d]) for x in (k, v))


def stack(layers):
    """Return the buffers of a whole cache from those of its layers."""
    return CacheBuffers(*(np.stack(parts) for parts in zip(*layers)))


def layer(buffers, i):
    """Return one layer of a whole cache."""
    return CacheBuffers(*(buffer[i] for buffer in buffers))
