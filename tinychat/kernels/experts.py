"""Mixtures of experts: each expert's weights are read once for all rows that are routed to it.

For router logits ``z`` of a token, the k largest, ties to the lower number,

    p[e] = exp(z[e]) / sum(exp(z))                or over the chosen ones only
    out  = sum over the chosen e of p[e] * down[e] @ gated(gate_up[e] @ x)

A sigmoid router has ``p[e] = 1 / (1 + exp(-z[e]))``, over the sum of the chosen ones or not; it chooses by ``p[e] +
b[e]``, or by ``z[e] + b[e]``. A biased one chooses so with the first p. Where experts are in groups, it chooses from
those groups whose two largest of these have the largest sums, ties to the lower number. SparseMixer (Liu et al., 2024,
https://arxiv.org/abs/2409.12136) sums for each choice over those logits, of experts not chosen yet, that differ from
its own by no more than a share of the larger one. A shared expert has a gate, the sigmoid of one logit more, or the
weight 1. Another kind has a factor of each expert, which multiplies p.

The sum goes from the most likely expert to the least likely, so it does not depend on other rows of the step. Each
choice of a token has a *slot*: a row of the arrays between the linears. Slots of one expert are consecutive, in the
order of the tokens, and begin at a tile: so an expert's linear is that of any other weight, over its slots. Weights of
experts that are not chosen are not read. A router may have one number more than there are experts: tokens whose largest
it is pass none, and what their slots give is zero.
"""

import numpy as np

from tinychat.kernels.compile_queue import deferred
from tinychat.kernels.inputs import groups_of, write_activated, write_group
from tinychat.kernels.jit import always_inline, always_inline_by_type, inline, is_kind, noinline
from tinychat.kernels.linear import FIRST, PANEL_BYTES, linear_tiles, tokens_per_tile
from tinychat.kernels.memory import load_f32, load_one, store_f32, store_one
from tinychat.kernels.norms import moments_of, normed
from tinychat.kernels.simd import LOG2_E, exp2, fma, sigmoid, splat_f32, sum_lanes, zero_outside
from tinychat.kernels.sizes import LANES
from tinychat.kernels.team import finish_stage, next_tile, share_columns, share_of, stage
from tinychat.kernels.team_queue import THREADS
from tinychat.kernels.variants import BiasedRouter, LogitRouter
from tinychat.kernels.weight_access import columns, layer_of, out_blocks
from tinychat.kernels.weights import STORE

# Work tiles of each thread, at least, if experts have rows enough: the last ones end together.
TILES_PER_THREAD = 8


@always_inline
def next_expert(logits, t, count, before, after):
    """Return the expert of token `t` after `after`, whose logit is `before`, in descending order; -1: the first.

    Ties go to the lower number. Where no logit compares, as among NaN, it is expert 0.
    """
    best, found = np.float32(-np.inf), -1
    for e in range(count):
        z = logits[t, e]
        follows = after < 0 or z < before or (z == before and e > after)
        if follows and (found < 0 or z > best):
            best, found = z, e
    return max(found, 0)


@always_inline
def power(v, largest):
    """Return ``exp(v - largest)`` of a vector."""
    return exp2((v - largest) * LOG2_E)


@always_inline
def exponential(z, largest):
    """Return ``exp(z - largest)`` of a number, as `power` does."""
    return sum_lanes(zero_outside(power(splat_f32(z), largest), 0, 1))


@stage
def choose_experts(team, T, sizes, e):
    """Choose the experts of each token by its logits, and write their weights."""
    logits, count, used = e.logits, e.counts.shape[0], e.chosen.shape[1]
    first, last = share_of(team, T)
    for t in range(first, last):
        start, before, after = t * logits.shape[1], np.float32(0), -1
        for j in range(used):
            after = next_expert(logits, t, count, before, after)
            before = logits[t, after]
            e.chosen[t, j] = after
        largest, total = logits[t, e.chosen[t, 0]], np.float32(0)
        for j in range(used):
            e.weights[t, j] = exponential(logits[t, e.chosen[t, j]], largest)
        if sizes.norm_topk_prob:
            for j in range(used):
                total += e.weights[t, j]
        else:
            for k in range(0, count, LANES):
                total += sum_lanes(zero_outside(power(load_f32(logits, start + k), largest), 0, count - k))
        for j in range(used):
            e.weights[t, j] /= total
        e.weights[t, used] = np.float32(1)
        if sizes.shared_gate:
            e.weights[t, used] /= np.float32(1) + exponential(-logits[t, count], np.float32(0))


@noinline
def limit_groups(logits, t, count, behind, groups, used):
    """Make minus infinity of the numbers of a token's experts in all but `used` groups.

    behind : the columns that take the groups' sums.
    """
    size = count // groups
    for g in range(groups):
        one, other = logits[t, g * size], logits[t, g * size + 1]
        first, second = max(one, other), min(one, other)
        for e in range(g * size + 2, (g + 1) * size):
            second = max(second, min(first, logits[t, e]))
            first = max(first, logits[t, e])
        logits[t, behind + g] = first + second
    for g in range(groups):
        total, before = logits[t, behind + g], 0
        for i in range(groups):
            if logits[t, behind + i] > total or (logits[t, behind + i] == total and i < g):
                before += 1
        if before >= used:
            for e in range(g * size, (g + 1) * size):
                logits[t, e] = np.float32(-np.inf)


@always_inline_by_type
def write_scores(routing, logits, start, count, behind):
    """Write the probabilities of a token's experts, `behind` numbers behind its logits, which begin at `start`."""

    def sigmoids(routing, logits, start, count, behind):
        for k in range(start, start + behind, LANES):
            store_f32(logits, k + behind, sigmoid(load_f32(logits, k)))

    def shares(routing, logits, start, count, behind):
        largest, total = load_one(logits, start), np.float32(0)
        for j in range(1, count):
            largest = max(largest, load_one(logits, start + j))
        for k in range(0, count, LANES):
            powers = zero_outside(power(load_f32(logits, start + k), largest), 0, count - k)
            store_f32(logits, start + behind + k, powers)
            total += sum_lanes(powers)
        for j in range(start + behind, start + behind + count):
            store_one(logits, j, load_one(logits, j) / total)

    return shares if is_kind(routing, BiasedRouter) else sigmoids


@always_inline_by_type
def add_biases(routing, logits, t, count, behind):
    """Write by what a token's experts are chosen, in the place of the logits: with biases of these, or of scores."""

    def to_scores(routing, logits, t, count, behind):
        for j in range(count):
            logits[t, j] = logits[t, behind + j] + routing.bias[j]

    def to_logits(routing, logits, t, count, behind):
        for j in range(count):
            logits[t, j] += routing.bias[j]

    return to_logits if is_kind(routing, LogitRouter) else to_scores


@stage
def choose_scored(team, T, routing, sizes, e):
    """Choose the experts of each token by their probabilities and biases; write their weights.

    routing : SigmoidRouter, LogitRouter or BiasedRouter.

    Columns of `e.logits` from the next multiple of 16 behind the experts on take the probabilities, those behind these
    sums of groups.
    """
    logits, count, used = e.logits, e.counts.shape[0], e.chosen.shape[1]
    behind = (count + LANES - 1) // LANES * LANES
    first, last = share_of(team, T)
    for t in range(first, last):
        write_scores(routing, logits, t * logits.shape[1], count, behind)
        add_biases(routing, logits, t, count, behind)
        if sizes.n_group > 1:
            limit_groups(logits, t, count, 2 * behind, sizes.n_group, sizes.topk_group)
        before, after, total = np.float32(0), -1, np.float32(0)
        for j in range(used):
            after = next_expert(logits, t, count, before, after)
            before = logits[t, after]
            e.chosen[t, j], e.weights[t, j] = after, logits[t, behind + after]
            total += e.weights[t, j]
        if sizes.norm_topk_prob:
            for j in range(used):
                e.weights[t, j] /= total
        e.weights[t, used] = np.float32(1)


@stage
def choose_mixed(team, T, routing, e):
    """Choose the experts of each token by its logits, and write their weights; routing : MixingRouter."""
    logits, count, used = e.logits, e.counts.shape[0], e.chosen.shape[1]
    first, last = share_of(team, T)
    for t in range(first, last):
        largest, after = np.float32(0), -1
        for j in range(used):
            after = next_expert(logits, t, count, largest, after)
            largest, total = logits[t, after], np.float32(0)
            for i in range(count):
                z = logits[t, i]
                is_left = z < largest or (z == largest and i >= after)
                if is_left and largest - z <= routing.reach[0] * max(abs(z), largest):
                    total += exponential(z, largest)
            e.chosen[t, j], e.weights[t, j] = after, np.float32(1) / total
        e.weights[t, used] = np.float32(1)


@stage
def carry_states(team, T, scale, states):
    """Multiply what is carried to a router by its scale, float32 [R]; states : float32 [>= T, >= R]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for i in range(scale.shape[0]):
            states[t, i] *= scale[i]


@stage
def scale_choices(team, T, scale, e):
    """Multiply the weights of chosen experts by numbers of their own; scale : float32 [E]."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for j in range(e.chosen.shape[1]):
            e.weights[t, j] *= scale[e.chosen[t, j]]


@stage
def group_rows(team, T, e):
    """Give each choice its slot."""
    if team.thread == 0:
        used, slot, active = e.chosen.shape[1], 0, 0
        for expert in range(e.counts.shape[0]):
            e.counts[expert] = 0
        for t in range(T):
            for j in range(used):
                e.counts[e.chosen[t, j]] += 1
        for expert in range(e.counts.shape[0]):
            rows = e.counts[expert]
            if rows > 0:
                tile = tokens_per_tile(rows)
                slot = (slot + tile - 1) // tile * tile
                e.firsts[expert] = slot
                slot += (rows + tile - 1) // tile * tile
                if expert < e.active.shape[0] - 1:
                    active += 1
                    e.active[active] = expert
            e.counts[expert] = 0
        e.active[0] = active
        for t in range(T):
            for j in range(used):
                expert = e.chosen[t, j]
                e.slots[t, j] = e.firsts[expert] + e.counts[expert]
                e.counts[expert] += 1
                if expert >= e.active.shape[0] - 1:
                    e.down[e.slots[t, j]] = np.float32(0)


@stage
def quantize_routed(team, T, hidden, norm, sizes, weight, rows, e):
    """Norm each hidden state and write it for each of its experts.

    weight : of all experts; rows : float32 [threads, >= K].
    """
    row, groups, used, done = rows[team.thread], groups_of(layer_of(weight, 0)), e.chosen.shape[1], -1
    first, last = share_of(team, T * used)
    for choice in range(first, last):
        t = choice // used
        if t != done:
            start, done = t * hidden.shape[1], t
            moments = moments_of(norm, hidden, start, sizes.hidden_size, sizes.rms_norm_eps)
            for k in range(0, groups.columns, LANES):
                store_f32(row, k, normed(norm, moments, load_f32(hidden, start + k), k))
        write_slot(weight, row, groups, t, choice % used, e)


@stage
def quantize_routed_activated(team, T, activation, size, weight, rows, e):
    """Write ``activation(gate) * up`` of each chosen expert, or ``activation(up)`` without gates; size : F."""
    row, groups, used = rows[team.thread], groups_of(layer_of(weight, 0)), e.chosen.shape[1]
    first, last = share_of(team, T * used)
    for choice in range(first, last):
        t, j = choice // used, choice % used
        write_activated(row, e.gate_up, e.slots[t, j], activation, size, 0, groups.columns)
        write_slot(weight, row, groups, t, j, e)


@always_inline
def write_slot(weight, row, groups, t, j, e):
    """Write `row` into the slot of choice `j` of token `t`."""
    tile, slot = tokens_per_tile(e.counts[e.chosen[t, j]]), e.slots[t, j]
    for g in range(groups.count):
        write_group(layer_of(weight, 0), e.x, row, groups, g, slot // tile, slot % tile, tile)


@always_inline
def tiles_of(e, expert):
    """Return the number of tiles of the rows of an expert."""
    tile = tokens_per_tile(e.counts[expert])
    return (e.counts[expert] + tile - 1) // tile


@deferred
def multiply_routed(team, weight, out, buffers, e):
    """Compute this thread's work tiles of `linear_routed`."""
    blocks, K, tiles, active = out_blocks(layer_of(weight, 0)), columns(layer_of(weight, 0)), 0, e.active[0]
    for i in range(active):
        tiles += tiles_of(e, e.active[1 + i])
    # Work tiles take about equally long; the weights of one stay in the cache while its rows pass by.
    fair, panel = tiles * blocks // (team.queue[THREADS] * TILES_PER_THREAD), max(1, PANEL_BYTES // (K * 8))
    done, i, work, buffer = 0, 0, next_tile(team), buffers[team.thread]
    while i < active:
        expert = e.active[1 + i]
        size = min(panel, max(1, fair // tiles_of(e, expert)))
        count = (blocks + size - 1) // size
        while work < done + count:
            first = (work - done) * size
            last = min(first + size, blocks)
            start, rows = e.firsts[expert], e.counts[expert]
            tile = tokens_per_tile(rows)
            one = layer_of(weight, expert)
            linear_tiles(one, e.x, start, start + rows, tile, out, FIRST, buffer, STORE, first, last)
            work = next_tile(team)
        done, i = done + count, i + 1
    finish_stage(team, done)


@stage
@inline
def linear_routed(team, weight, out, buffers, e):
    """Apply each chosen expert to its rows.

    weight : stacked over the experts; out : float32 [slots, >= N], rows of a stride that is a multiple of 16;
    buffers : float32 [threads, TILE_FLOATS].
    """
    multiply_routed(team, weight, out, buffers, e)


@stage
def clear_rows(team, T, hidden, out):
    """Write zeros to as many rows as there are tokens, of as many columns as `hidden` has."""
    first, last = share_of(team, T)
    for t in range(first, last):
        for k in range(0, hidden.shape[1], LANES):
            store_f32(out, t * out.shape[1] + k, splat_f32(0.0))


@stage
def add_routed(team, T, shared, branch, hidden, e):
    """Add to each hidden state the outputs of its experts, each times its weight; branch : of the shared expert."""
    used = e.chosen.shape[1]
    first, last, first_vector, last_vector = share_columns(team, T, hidden.shape[1] // LANES)
    for t in range(first, last):
        for k in range(first_vector * LANES, last_vector * LANES, LANES):
            total = splat_f32(0.0)
            for j in range(used):
                total = fma(load_f32(e.down, e.slots[t, j] * e.down.shape[1] + k), e.weights[t, j], total)
            if shared:
                total = fma(load_f32(branch, t * branch.shape[1] + k), e.weights[t, used], total)
            index = t * hidden.shape[1] + k
            store_f32(hidden, index, load_f32(hidden, index) + total)
