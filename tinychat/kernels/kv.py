"""Rewriting the past: a new KV cache from positions of the old one.

Dropping a turn, shifting the context, growing, changing the type are all the same: position j of the back buffer takes
position ``sources[j]`` of the front buffer, its key turned by the angle of the move. A key that does not move is turned
by nothing: ``x * 1 - y * 0`` is x, to the bit.
"""

import numpy as np

from tinychat.kernels.memory import load_f32, load_one, store_f32
from tinychat.kernels.policy import inlined, kernel
from tinychat.kernels.rope import append_key, rotate
from tinychat.kernels.simd import LANES
from tinychat.kernels.threads import share


@inlined
def load_key(keys, g, position, row, d):
    """Copy a key out of its block of 16."""
    first = (g * keys.shape[1] + position // LANES) * d * LANES + position % LANES
    for i in range(d):
        row[i] = load_one(keys, first + i * LANES)


@kernel
def rewrite(thread, threads, front_keys, front_values, back_keys, back_values, sources, turns, rows):
    """Fill ``back[:, :, j]`` with ``front[:, :, sources[j]]``; each thread does its share of the (layer, head) pairs.

    keys : [L, G, context/16, d, 16]; values : [L, G, context, padded d]; both float32 or float16, front and back each
    of their own; sources : int64 [n]; turns : float32 [n, d], cosines and sines of the angles to turn by;
    rows : float32 [threads, >= d].
    """
    L, G, d, padded = front_keys.shape[0], front_keys.shape[1], front_keys.shape[3], front_values.shape[3]
    first, last = share(thread, threads, L * G)
    row = rows[thread]
    for item in range(first, last):
        layer, g = item // G, item % G
        old_keys, new_keys = front_keys[layer], back_keys[layer]
        old_values, new_values = front_values[layer], back_values[layer]
        for j in range(sources.shape[0]):
            load_key(old_keys, g, sources[j], row, d)
            rotate(row, turns[j], d, np.float32(1))
            append_key(new_keys, g, j, row, d)
            here, there = (g * new_values.shape[1] + j), (g * old_values.shape[1] + sources[j])
            for i in range(0, padded, LANES):
                store_f32(new_values, here * padded + i, load_f32(old_values, there * padded + i))
