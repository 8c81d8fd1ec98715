"""Mixtures of slots, and the messages of the loop before, as layers of Inkling 2 read them (`models.block_mixtures`).

Of the vectors x_j that some slots and the residual stream have of a token, and a query q of the layer,

    u_j = x_j / sqrt(mean(x_j**2) + 1e-6)        out = sum_j softmax_j(q.u_j / sqrt(D)) u_j

A message m is such a mixture without the residual stream. Gates f and g, of the mixture and of the message, give

    out = (1 - tanh(f)) x + tanh(g) m

(github.com/huggingface/transformers, models/inkling2_loop). Slots of a token stand side by side in one array; D, the
`hidden_size`, is a multiple of 16. Sums run over the columns in lanes, then over the lanes by halves, then over the
slots in order, the residual stream last.
"""

import numpy as np

from tinychat.kernels.jit import always_inline
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.scores import soft_cap
from tinychat.kernels.simd import LOG2_E, exp2, fma, splat_f32, sum_lanes
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import share_columns, share_of, stage

EPS = np.float32(1e-6)
LOWEST = np.float32(-1e30)


@always_inline
def score_row(x, start, queries, query, D):
    """Return the score of a row of D numbers, in powers of two, and the inverse of its length."""
    squares = products = splat_f32(0.0)
    for k in range(0, D, LANES):
        v = load_f32(x, start + k)
        squares = fma(v, v, squares)
        products = fma(v, load_f32(queries, query + k), products)
    inverse = np.float32(1) / np.sqrt(sum_lanes(squares) / np.float32(D) + EPS)
    return sum_lanes(products) * inverse * (np.float32(LOG2_E) / np.sqrt(np.float32(D))), inverse


@always_inline
def add_row(x, start, weight, out, target, D):
    """Add a row of D numbers, times a weight, to another one."""
    for k in range(0, D, LANES):
        store_f32(out, target + k, fma(load_f32(x, start + k), weight, load_f32(out, target + k)))


@always_inline
def slot_of(seen, j):
    """Return slot `j` of those that are mixed."""
    return j if j < seen.first else seen.other + j - seen.first


@always_inline
def power_of_two(v):
    """Return ``2**v``."""
    return sum_lanes(exp2(splat_f32(v))) * np.float32(1 / LANES)


@stage
def mix_slots(team, T, slots, seen, hidden, takes_hidden, queries, query, sizes, factors, out):
    """Write the mixture of the first slots, of further ones, and of the residual stream.

    slots : float32 [>= T, >= slots D]; seen : `models.block_mixtures.Seen`; hidden : float32 [>= T, >= D], the residual
    stream; takes_hidden : whether it is one of them; queries : float32, of which D from element `query` on are the
    query; factors : float32 [>= T, two for each vector that is mixed], scratch; out : float32 [>= T, >= D], none of
    the others.
    """
    D, count = sizes.hidden_size, seen.first + seen.others
    begin, end = share_of(team, T)
    for t in range(begin, end):
        row, source, target, factor = t * slots.shape[1], t * hidden.shape[1], t * out.shape[1], t * factors.shape[1]
        largest = LOWEST
        for j in range(count + takes_hidden):
            if j < count:
                score, inverse = score_row(slots, row + slot_of(seen, j) * D, queries, query, D)
            else:
                score, inverse = score_row(hidden, source, queries, query, D)
            store_one(factors, factor + 2 * j, score)
            store_one(factors, factor + 2 * j + 1, inverse)
            largest = max(largest, score)
        total = np.float32(0)
        for j in range(count + takes_hidden):
            power = power_of_two(load_one(factors, factor + 2 * j) - largest)
            store_one(factors, factor + 2 * j, power)
            total += power
        for k in range(0, D, LANES):
            store_f32(out, target + k, splat_f32(0.0))
        for j in range(count + takes_hidden):
            weight = load_one(factors, factor + 2 * j) / total * load_one(factors, factor + 2 * j + 1)
            if j < count:
                add_row(slots, row + slot_of(seen, j) * D, weight, out, target, D)
            else:
                add_row(hidden, source, weight, out, target, D)


@stage
def take_message(team, T, gates, message, sizes, x):
    """Write to `x` what gates leave of it, and let through of a message.

    gates : float32 [>= T, >= 2 D], those of `x`, then those of the message; message, x : float32 [>= T, >= D].
    """
    D = sizes.hidden_size
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        gate, source, target = t * gates.shape[1], t * message.shape[1], t * x.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            kept = 1.0 - soft_cap(load_f32(gates, gate + k), np.float32(1))
            taken = soft_cap(load_f32(gates, gate + D + k), np.float32(1)) * load_f32(message, source + k)
            store_f32(x, target + k, fma(kept, load_f32(x, target + k), taken))


@always_inline
def copy_rows(team, T, x, column, out, target_column, D):
    """Copy D columns of rows, from `column` on, to `target_column` of others."""
    first, last, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(first, last):
        source, target = t * x.shape[1] + column, t * out.shape[1] + target_column
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            store_f32(out, target + k, load_f32(x, source + k))


@stage
def store_slot(team, T, x, slot, sizes, slots):
    """Write rows, float32 [>= T, >= D], to a slot."""
    copy_rows(team, T, x, 0, slots, slot * sizes.hidden_size, sizes.hidden_size)


@stage
def load_slot(team, T, slots, slot, sizes, x):
    """Write the rows of a slot to `x`, float32 [>= T, >= D]."""
    copy_rows(team, T, slots, slot * sizes.hidden_size, x, 0, sizes.hidden_size)


@stage
def add_rows(team, T, first, second, sizes, out):
    """Write the sum of rows; all are float32 [>= T, >= D], and may be the same."""
    D = sizes.hidden_size
    begin, end, first_vector, last_vector = share_columns(team, T, D // LANES)
    for t in range(begin, end):
        a, b, target = t * first.shape[1], t * second.shape[1], t * out.shape[1]
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            store_f32(out, target + k, load_f32(first, a + k) + load_f32(second, b + k))
