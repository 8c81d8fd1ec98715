"""The logits of output matrices that give those of some tokens: in clusters, or of the most frequent ones.

Of clusters, each token passes a few, as it passes experts.
"""

import numpy as np

from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import store_f32
from tinychat.kernels.simd import splat_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage


@always_inline
def fill_row(logits, t, value):
    """Write a number to all columns of row `t`."""
    for k in range(0, logits.shape[1], LANES):
        store_f32(logits, t * logits.shape[1] + k, splat_f32(value))


@stage
def scatter_logits(team, T, ordering, e, logits):
    """Write what the chosen clusters give as logits of their ids; those of all others are 1 below the least of these.

    ordering : float32 [V], the ids of all clusters' rows; e : ExpertScratch, with the results in `gate_up`; logits :
    float32 [>= T, V padded to 16].
    """
    size, first_token, last_token = ordering.shape[0] // e.counts.shape[0], *share_of(team, T)
    for t in range(first_token, last_token):
        least = np.float32(np.inf)
        for j in range(e.chosen.shape[1]):
            for i in range(size):
                least = min(least, e.gate_up[e.slots[t, j], i])
        fill_row(logits, t, least - np.float32(1))
        for j in range(e.chosen.shape[1]):
            first = e.chosen[t, j] * size
            for i in range(size):
                logits[t, np.int64(ordering[first + i])] = e.gate_up[e.slots[t, j], i]


@stage
def spread_logits(team, T, ids, some, logits):
    """Write logits of some ids; those of all others are 1 below the least of these.

    ids : float32 [N]; some : float32 [>= T, >= N]; logits : float32 [>= T, V padded to 16].
    """
    first, last = share_of(team, T)
    for t in range(first, last):
        least = np.float32(np.inf)
        for i in range(ids.shape[0]):
            least = min(least, some[t, i])
        fill_row(logits, t, least - np.float32(1))
        for i in range(ids.shape[0]):
            logits[t, np.int64(ids[i])] = some[t, i]
