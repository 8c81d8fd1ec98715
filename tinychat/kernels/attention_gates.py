"""Gates of attention: numbers above 0 that multiply what it gives, for each channel or for each head."""

from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.simd import max_lanes, sigmoid, softplus, splat_f32
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_of, stage


@stage
def take_gates(team, T, qkv, sizes, gates):
    """Move the gates of attention from between queries and keys to an array of their own, and close the gap.

    qkv : float32 [>= T, >= 2 (H + G) d], queries, gates, keys, values; d is a multiple of 16; gates : float32
    [>= T, >= H d].
    """
    columns = sizes.num_attention_heads * sizes.head_dim
    first, last = share_of(team, T)
    for t in range(first, last):
        row, target = t * qkv.shape[1], t * gates.shape[1]
        for i in range(0, columns, LANES):
            store_f32(gates, target + i, load_f32(qkv, row + columns + i))
        for i in range(2 * columns, qkv.shape[1] - LANES + 1, LANES):
            store_f32(qkv, row + i - columns, load_f32(qkv, row + i))


@stage
def gate_attended(team, T, gates, sizes, attended):
    """Multiply what attention gives by the sigmoid of the gates; float32 [>= T, >= H d] both, d a multiple of 16."""
    columns = sizes.num_attention_heads * sizes.head_dim
    first, last = share_of(team, T * sizes.num_attention_heads)
    for item in range(first, last):
        start = item * sizes.head_dim
        row, column = start // columns, start % columns
        index, gate = row * attended.shape[1] + column, row * gates.shape[1] + column
        for i in range(0, sizes.head_dim, LANES):
            store_f32(attended, index + i, load_f32(attended, index + i) * sigmoid(load_f32(gates, gate + i)))


@stage
def gate_heads(team, T, gates, with_softplus, sizes, size, attended):
    """Multiply what attention gives each head by the sigmoid, or softplus, of the head's gate.

    gates : float32 [>= T, >= H]; with_softplus : bool; size : of a head, d; attended : float32 [>= T, >= H d].
    """
    heads, d = sizes.num_attention_heads, size
    first, last = share_of(team, T * heads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        gate = splat_f32(load_one(gates, t * gates.shape[1] + h))
        factor = max_lanes(softplus(gate) if with_softplus else sigmoid(gate))
        start = t * attended.shape[1] + h * d
        for i in range(start, start + d):
            store_one(attended, i, load_one(attended, i) * factor)
