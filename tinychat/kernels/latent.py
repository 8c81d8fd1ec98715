"""Multi-head latent attention: one key for all heads, from which each head's keys and values would follow.

For the latent c of a position, its rotated key r, and a head's query (n, s), of which s is rotated,

    score = n . (Wk c) + s . r = (Wk' n) . c + s . r
    out   = Wv (sum of weight * c)

so that attention sees a query ``(s, Wk' n)`` for each head, the key ``(r, c)`` and the value ``c`` (DeepSeek-AI, 2024,
https://arxiv.org/abs/2405.04434). The matrices of a head are linears of its own, of inputs of its own: activations
of a head follow those of the one before, in tiles as those of any linear.
"""

import numpy as np

from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.inputs import groups_of, write_group
from tinychat.kernels.jit import always_inline, inline
from tinychat.kernels.linear import linear_tiles, tokens_per_tile, work_tile_rows
from tinychat.kernels.memory import load_one, store_one
from tinychat.kernels.norms import inverse_rms
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import finish_stage, next_tile, share_of, stage
from tinychat.kernels.team_queue import THREADS
from tinychat.kernels.weight_access import layer_of, out_blocks
from tinychat.kernels.weights import STORE

# Of the norms of latents, in all models: transformers does not take it from the configuration.
NORM_EPS = np.float32(1e-6)


@always_inline
def tiles_of_head(T):
    """Return the number of tiles that the activations of a head take."""
    return (T + tokens_per_tile(T) - 1) // tokens_per_tile(T)


@always_inline
def write_normed(x, start, gain, out, target):
    """Write an RMS-normed row."""
    size = gain.shape[0]
    scale = inverse_rms(x, start, size, NORM_EPS)
    for i in range(size):
        store_one(out, target + i, load_one(x, start + i) * scale * gain[i])


@stage
def norm_latents(team, T, down, q_gain, kv_gain, sizes, low, qkv):
    """Norm the latents; write those of queries, where there are any, into `low`, key and value behind the queries.

    down : float32 [>= T, >= columns], of each token the latent of the queries [Q], or the queries themselves, then the
    latent of the key, then what of it is rotated; q_gain : float32 [Q], or [0]; kv_gain : float32 [kv_lora_rank];
    qkv : float32 [>= T, >= (H + 1) d + kv_lora_rank].
    """
    rank, d, heads, of_queries = kv_gain.shape[0], sizes.head_dim, sizes.num_attention_heads, q_gain.shape[0]
    rotated = d - rank
    if of_queries == 0:
        of_queries = heads * (sizes.qk_nope_head_dim + rotated)
    first, last = share_of(team, T)
    for t in range(first, last):
        start, key = t * down.shape[1], t * qkv.shape[1] + heads * d
        if q_gain.shape[0] > 0:
            write_normed(down, start, q_gain, low, t * low.shape[1])
        for i in range(rotated):
            store_one(qkv, key + i, load_one(down, start + of_queries + rank + i))
        write_normed(down, start + of_queries, kv_gain, qkv, key + rotated)
        for i in range(rank):
            store_one(qkv, key + d + i, load_one(qkv, key + rotated + i))


@always_inline
def write_head(weight, row, values, start, size, x, tile, t, tokens):
    """Write `size` numbers as token `t` of a tile of a head's activations, zeros up to whole groups."""
    groups = groups_of(layer_of(weight, 0))
    for k in range(size):
        row[k] = load_one(values, start + k)
    for k in range(size, groups.columns):
        row[k] = np.float32(0)
    for g in range(groups.count):
        write_group(layer_of(weight, 0), x, row, groups, g, tile, t, tokens)


@stage
def split_queries(team, T, queries, sizes, weight, s, qkv):
    """Copy the rotated part of each query into `qkv`, and write the rest for `weight`.

    queries : float32 [>= T, >= H (qk_nope_head_dim + rotated)].
    """
    row, tokens, size = s.rows[team.thread], tokens_per_tile(T), sizes.qk_nope_head_dim
    d, rotated = sizes.head_dim, sizes.head_dim - sizes.kv_lora_rank
    first, last = share_of(team, sizes.num_attention_heads * T)
    for item in range(first, last):
        h, t = item // T, item % T
        start, target = t * queries.shape[1] + h * (size + rotated), t * qkv.shape[1] + h * d
        for i in range(rotated):
            store_one(qkv, target + i, load_one(queries, start + size + i))
        tile = h * tiles_of_head(T) + t // tokens
        write_head(weight, row, queries, start, size, s.latents.x, tile, t % tokens, tokens)


@stage
def quantize_heads(team, T, values, heads, size, weight, s):
    """Write the numbers of each head for `weight`; values : float32 [>= T, >= heads * size]."""
    row, tokens = s.rows[team.thread], tokens_per_tile(T)
    first, last = share_of(team, heads * T)
    for item in range(first, last):
        h, t = item // T, item % T
        start, tile = t * values.shape[1] + h * size, h * tiles_of_head(T) + t // tokens
        write_head(weight, row, values, start, size, s.latents.x, tile, t % tokens, tokens)


@deferred
def multiply_heads(team, T, weight, x, out, buffers, heads, stride):
    """Compute this thread's work tiles of `linear_heads`."""
    blocks, tile = out_blocks(layer_of(weight, 0)), tokens_per_tile(T)
    size = min(blocks, work_tile_rows(layer_of(weight, 0), tile, heads * blocks, team.queue[THREADS]))
    parts, buffer = (blocks + size - 1) // size, buffers[team.thread]
    work = next_tile(team)
    while work < heads * parts:
        h, first = work // parts, work % parts * size
        start = h * tiles_of_head(T) * tile
        # The rows of `out` are those of the tokens, whichever tile they are in.
        offset = (h + 1) * stride - blocks * LANES - start * out.shape[1]
        last = min(first + size, blocks)
        linear_tiles(layer_of(weight, h), x, start, start + T, tile, out, offset, buffer, STORE, first, last)
        work = next_tile(team)
    finish_stage(team, heads * parts)


@stage
@inline
def linear_heads(team, T, weight, s, out, heads, stride):
    """Apply the linear of each head to its own input; the output of head h ends at column ``(h + 1) * stride``.

    weight : stacked over the heads, N a multiple of 16; out : float32 [>= T, >= heads * stride].
    """
    multiply_heads(team, T, weight, s.latents.x, out, s.tiles, heads, stride)
