"""Rewriting the past: a new KV cache from positions of the old one.

Dropping a turn, shifting the context, changing the type are all the same: a position takes what another one had, its
key turned by the angle of the move. A key that does not move stays as it is, to the bit.
"""

import numpy as np

from tinychat.kernels.jit import kernel
from tinychat.kernels.kv import BLOCK, head_of, layer_cache, load_key, load_value, store_key, store_value
from tinychat.kernels.rope import rotate
from tinychat.kernels.team import share


@kernel
def rewrite(thread, threads, front, back, tables, first, sources, turns, angle_sets, rotary_dims, rows):
    """Fill positions from `first` on, a multiple of 64, with those of ``sources``; each thread does its share of them.

    front, back : CacheBuffers, of any type each, or the same one; tables : int64 [2, blocks], which blocks of the front
    hold the old positions, and which of the back, none of them the same, take the new ones; sources : int64 [n]; turns
    : float32 [sets, n, largest rotary_dim], cosines and sines of the angles to turn by; angle_sets : int64 [L], which
    of the sets a layer has; rotary_dims : int64 [L]; rows : float32 [threads, d].
    """
    L, G, n, d = front.keys.shape[1], front.keys.shape[2], sources.shape[0], rows.shape[1]
    begin, end = share(thread, threads, L * G)
    row = rows[thread]
    for item in range(begin, end):
        layer, g = item // G, item % G
        old, new = layer_cache(front, layer), layer_cache(back, layer)
        for i in range(n):
            source, j = sources[i], first + i
            there = head_of(old, tables[0, source // BLOCK], g)
            here = head_of(new, tables[1, j // BLOCK], g)
            load_key(old, there, source % BLOCK, row, d)
            if source != j:
                rotate(row, 0, turns[angle_sets[layer], i], rotary_dims[layer], d, np.float32(1))
            store_key(new, here, j % BLOCK, row, 0, d)
            load_value(old, there, source % BLOCK, row, d)
            store_value(new, here, j % BLOCK, row, 0, d, i == n - 1)
