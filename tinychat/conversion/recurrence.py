"""Gated DeltaNet, Kimi Delta Attention, Mamba-2 and Mamba of one text in NumPy, float32: see kernels of these names."""

import numpy as np

from tinychat.conversion.source import Floats
from tinychat.models.delta_net import DeltaNet
from tinychat.models.mamba import Mamba


def sigmoid(x: Floats) -> Floats:
    """Return ``1 / (1 + exp(-x))``."""
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def delta_outputs(x: Floats, decays: Floats, rates: Floats, net: DeltaNet) -> Floats:
    """Return the results [T, Hv dv] of convolved queries, keys and values [T, >= channels].

    decays : [T, Hv], or of channels [T, Hv dk].
    """
    T, group = len(x), net.value_heads // net.key_heads
    q, k, v = np.split(x[:, : net.channels], [net.key_size, 2 * net.key_size], axis=1)
    q, k = (each.reshape(T, net.key_heads, net.key_dim) for each in (q, k))
    q, k = (each / np.sqrt(np.square(each).sum(axis=-1, keepdims=True) + np.float32(1e-6)) for each in (q, k))
    q, k = (np.repeat(each, group, axis=1)[:, :, None] for each in (q * np.float32(net.key_dim**-0.5), k))
    v = v.reshape(T, net.value_heads, 1, net.value_dim)
    decays = decays.reshape(T, net.value_heads, -1, 1)
    state = np.zeros((net.value_heads, net.key_dim, net.value_dim), np.float32)
    out = np.empty((T, net.value_heads, net.value_dim), np.float32)
    for t in range(T):
        state *= decays[t]
        change = (v[t] - k[t] @ state) * rates[t, :, None, None]
        state += k[t].transpose(0, 2, 1) * change
        out[t] = (q[t] @ state)[:, 0]
    return out.reshape(T, -1)


def head_norm(x: Floats, gain: Floats, eps: np.float32) -> Floats:
    """Return each head of ``x [T, Hv dv]``, normed by itself."""
    heads = x.reshape(len(x), -1, len(gain))
    normed = heads / np.sqrt(np.square(heads).mean(axis=-1, keepdims=True) + eps) * gain
    return np.asarray(normed.reshape(x.shape), np.float32)


def state_outputs(x: Floats, decays: Floats, steps: Floats, net: Mamba) -> Floats:
    """Return the outputs of a scan [T, H P] over convolved values, keys and queries [T, >= channels]."""
    T, group = len(x), net.value_heads // net.key_heads
    v, k, q = np.split(x[:, : net.channels], [net.value_size, net.value_size + net.key_size], axis=1)
    k, q = (np.repeat(each.reshape(T, net.key_heads, 1, net.key_dim), group, axis=1) for each in (k, q))
    v = v.reshape(T, net.value_heads, 1, net.value_dim) * steps[:, :, None, None]
    state = np.zeros((net.value_heads, net.key_dim, net.value_dim), np.float32)
    out = np.empty((T, net.value_heads, net.value_dim), np.float32)
    for t in range(T):
        state *= decays[t, :, None, None]
        state += k[t].transpose(0, 2, 1) * v[t]
        out[t] = (q[t] @ state)[:, 0]
    return out.reshape(T, -1)


def selective_outputs(x: Floats, steps: Floats, keys: Floats, queries: Floats, speeds: Floats) -> Floats:
    """Return the outputs of Mamba's scan [T, C] over values and steps [T, C], keys and queries [T, N].

    speeds : [C, N].
    """
    state, out = np.zeros(speeds.shape, np.float32), np.empty_like(x)
    for t, (value, step) in enumerate(zip(x, steps)):
        state = state * np.exp(-speeds * step[:, None]) + np.outer(value * step, keys[t])
        out[t] = state @ queries[t]
    return out


def group_norm(x: Floats, gain: Floats, groups: int, eps: np.float32) -> Floats:
    """Return each group of the channels of ``x [T, H P]``, normed by itself."""
    parts = x.reshape(len(x), groups, -1)
    normed = parts / np.sqrt(np.square(parts).mean(axis=-1, keepdims=True) + eps)
    return np.asarray(normed.reshape(x.shape) * gain, np.float32)
