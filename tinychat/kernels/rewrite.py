"""Rewriting the past: a new KV cache from positions of the old one.

Dropping a turn, shifting the context, growing, changing the type are all the same: position j of the back buffer takes
position ``sources[j]`` of the front buffer, its key turned by the angle of the move. A key that does not move stays
as it is, to the bit.
"""

import numpy as np

from tinychat.kernels.jit import kernel
from tinychat.kernels.kv import load_key, load_value, store_key, store_value
from tinychat.kernels.rope import rotate
from tinychat.kernels.team import share
from tinychat.kernels.weights import layer_of


@kernel
def rewrite(thread, threads, front, back, sources, turns, angle_sets, rotary_dims, rows):
    """Fill position j of `back` with ``sources[j]`` of `front`; each thread does its share of the (layer, head) pairs.

    front, back : CacheBuffers of all layers, of any type each; sources : int64 [n]; turns : float32
    [sets, n, largest rotary_dim], cosines and sines of the angles to turn by; angle_sets : int64 [L], which of the sets
    a layer has; rotary_dims : int64 [L]; rows : float32 [threads, d].
    """
    L, G, n, d = front.keys.shape[0], front.keys.shape[1], sources.shape[0], rows.shape[1]
    first, last = share(thread, threads, L * G)
    row = rows[thread]
    for item in range(first, last):
        layer, g = item // G, item % G
        old, new = layer_of(front, layer), layer_of(back, layer)
        for j in range(n):
            load_key(old, g, sources[j], row, d)
            if sources[j] != j:
                rotate(row, 0, turns[angle_sets[layer], j], rotary_dims[layer], d, np.float32(1))
            store_key(new, g, j, row, 0, d)
            load_value(old, g, sources[j], row, d)
            store_value(new, g, j, row, 0, d, j == n - 1)
