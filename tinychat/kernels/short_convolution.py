"""Gated short convolutions over the positions of a sequence, whose past is in the blocks of the KV cache.

Of a position's numbers b, c and x, and of v = b x here and at the K - 1 positions before,

    out[i] = c[i] sum_k taps[i, k] v[p - K + 1 + k, i]

each channel i by itself; v is 0 before position 0 (LFM2: Liquid AI, 2025, https://arxiv.org/abs/2511.23404). Vectors
v are stored like keys and values, cut into heads: the keys of a layer of the cache, then its values, then those
of the next layer. Earlier ones are read from there, rounded as that type of cache rounds; a position's own is not. So a
token gives the same bits alone and among others.
"""

from tinychat.kernels.jit import always_inline
from tinychat.kernels.kv import head_of, layer_cache, load_key, load_value, store_key, store_value
from tinychat.kernels.memory import load_one, store_one
from tinychat.kernels.sizes import BLOCK
from tinychat.kernels.team import share_of, stage


@always_inline
def head_of_part(cache, part):
    """Return the cache layer of a head of channels, its KV head there, and whether it is stored as a key."""
    G = cache.keys.shape[2]
    half = part // G
    return layer_cache(cache, cache.layer + half // 2), part % G, half % 2 == 0


@always_inline
def store_part(cache, part, block, i, x, index, d):
    """Store d numbers of `x`, from flat element `index` on, for position `i` of a block."""
    layer, g, is_key = head_of_part(cache, part)
    head = head_of(layer, block, g)
    if is_key:
        store_key(layer, head, i, x, index, d)
    else:
        store_value(layer, head, i, x, index, d, False)


@always_inline
def load_part(cache, part, block, i, row, d):
    """Load the numbers of position `i` of a block to ``row[:d]``."""
    layer, g, is_key = head_of_part(cache, part)
    head = head_of(layer, block, g)
    if is_key:
        load_key(layer, head, i, row, d)
    else:
        load_value(layer, head, i, row, d)


@stage
def short_convolution(team, T, batch, bcx, taps, rows, sizes, cache, out):
    """Convolve each row's ``b x`` with those before it, and multiply by c; append ``b x`` to the cache.

    batch : of T rows or more, the `sequences` and `positions`, int64, ascending in a sequence; and the `tables` of the
    sequences, int32 [sequences, blocks]; bcx : float32 [>= T, >= 3 D], b then c then x, of which b becomes ``b x``;
    taps : float32 [D * K], the last of a channel for the position itself; rows : float32 [threads, >= d]; sizes : D is
    the `hidden_size`, a multiple of d, the `head_dim`; cache : a LayerCache, the first of as many layers as D takes;
    out : float32 [>= T, >= D].
    """
    D, d = sizes.hidden_size, sizes.head_dim
    K, row = taps.shape[0] // D, rows[team.thread]
    # Each thread has channels of its own: rows need those before them.
    first, last = share_of(team, D // d)
    for part in range(first, last):
        for t in range(T):
            table, position = batch.tables[batch.sequences[t]], batch.positions[t]
            index, target = t * bcx.shape[1] + part * d, t * out.shape[1] + part * d
            for i in range(d):
                store_one(bcx, index + i, load_one(bcx, index + i) * load_one(bcx, index + 2 * D + i))
            store_part(cache, part, table[position // BLOCK], position % BLOCK, bcx, index, d)
            for i in range(d):
                store_one(out, target + i, load_one(bcx, index + i) * taps[(part * d + i) * K + K - 1])
            for back in range(1, min(K, position + 1)):
                before = position - back
                load_part(cache, part, table[before // BLOCK], before % BLOCK, row, d)
                for i in range(d):
                    more = row[i] * taps[(part * d + i) * K + K - 1 - back]
                    store_one(out, target + i, load_one(out, target + i) + more)
            for i in range(d):
                store_one(out, target + i, load_one(out, target + i) * load_one(bcx, index + D + i))
