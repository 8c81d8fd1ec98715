"""Changes of attention's scores before the softmax, and of logits, in models that have them.

SoftCap        ``cap * tanh(v / cap)``                                       (Bello et al., 2016; Gemma 2)
Alibi          ``v + slope * (s - p)`` for the key at s and a query at p     (ALiBi: Press et al., 2022)
AlibiBothWays  ``v - slope * |s - p|``
DistanceBias   ``v + biases[s - p]`` of the same                             (T5: Raffel et al., 2020; MPNet)
AttentionSink  ``v``, and the softmax counts one score more, of a value 0     (Xiao et al., 2023; gpt-oss)
ProfileBias    ``v + sum_j w[j] profiles[j, s - p]``, and a sink, both of the query   (Inkling 2)
"""

import numpy as np

from tinychat.kernels.jit import always_inline, always_inline_by_type, is_kind
from tinychat.kernels.memory import load_f32, load_f32x64, load_one, store_f32
from tinychat.kernels.simd import LOG2_E, exp2, fma, lane_numbers, minimum, splat_f32
from tinychat.kernels.sizes import BLOCK, LANES
from tinychat.kernels.team import share_of, stage
from tinychat.kernels.variants import Alibi, AlibiBothWays, AttentionSink, DistanceBias, ProfileBias, SoftCap


@always_inline
def soft_cap(v, cap):
    """Return ``cap * tanh(v / cap)`` of a vector of any width, off by 1e-7 of the cap at most."""
    # tanh(u) is 1 - 2 / (exp(2 u) + 1); beyond 2**60 nothing changes.
    power = exp2(minimum(v * (np.float32(2 * LOG2_E) / cap), 60.0))
    return cap * (1.0 - 2.0 / (power + 1.0))


@always_inline
def weight_of(scoring, item, row):
    """Return the element of the first weight of profiles that the query of a row has."""
    token, head = item.token + row // item.group, item.g * item.group + row % item.group
    return token * scoring.weights.shape[1] + scoring.first + head * scoring.profiles.shape[0]


@always_inline
def sink_of(scoring, item, row):
    """Return the sink of the query of a row."""
    token, head = item.token + row // item.group, item.g * item.group + row % item.group
    sinks = scoring.first + scoring.heads * scoring.profiles.shape[0]
    return load_one(scoring.weights, token * scoring.weights.shape[1] + sinks + head)


@always_inline_by_type
def final_score(scoring, item, r, start, score):
    """Return the scores of row `r` of an item (`kernels.attention`) for 64 keys, from position `start` on."""

    def capped(scoring, item, r, start, score):
        return soft_cap(score, scoring.cap)

    def sloped(scoring, item, r, start, score):
        row = min(item.row0 + r, item.rows - 1)
        slope = scoring.slopes[item.g * item.group + row % item.group]
        distance = lane_numbers(score) + np.float32(start - item.positions[r])
        return fma(distance, slope, score)

    def sloped_both_ways(scoring, item, r, start, score):
        row = min(item.row0 + r, item.rows - 1)
        slope = scoring.slopes[item.g * item.group + row % item.group]
        distance = lane_numbers(score) + np.float32(start - item.positions[r])
        return fma(minimum(distance, 0.0 - distance), slope, score)

    def biased(scoring, item, r, start, score):
        row, width = min(item.row0 + r, item.rows - 1), scoring.biases.shape[1]
        head = item.g * item.group + row % item.group
        first = min(max(0, start - item.positions[r] + width // 2 - 1), width - BLOCK)
        return score + load_f32x64(scoring.biases, head * width + first)

    def profiled(scoring, item, r, start, score):
        profiles, weight = scoring.profiles, weight_of(scoring, item, min(item.row0 + r, item.rows - 1))
        R, width = profiles.shape
        # The middle of a row is of distance 0 and the earlier ones, with a block of zeros on either side.
        first = min(start - item.positions[r] + width - BLOCK - 1, width - BLOCK)
        for j in range(R if first > 0 else 0):
            score = fma(load_f32x64(profiles, j * width + first), load_one(scoring.weights, weight + j), score)
        return score

    if is_kind(scoring, SoftCap):
        return capped
    if is_kind(scoring, ProfileBias):
        return profiled
    if is_kind(scoring, DistanceBias):
        return biased
    if is_kind(scoring, AlibiBothWays):
        return sloped_both_ways
    return sloped if is_kind(scoring, Alibi) else lambda scoring, item, r, start, score: score


@always_inline_by_type
def changes_scores(scoring):
    """Return whether `final_score` changes scores."""
    changes = is_kind(scoring, SoftCap, Alibi, AlibiBothWays, DistanceBias, ProfileBias)
    return lambda scoring: changes


@always_inline_by_type
def softmax_sum(scoring, item, row, largest, total):
    """Return the sum of ``2**(score - largest)`` of a row in 16 lanes; total : the sum over the keys."""

    def sunk(scoring, item, row, largest, total):
        sink = scoring.sinks[item.g * item.group + row % item.group]
        return total + exp2(splat_f32(sink - largest))

    def sunk_by_query(scoring, item, row, largest, total):
        return total + exp2(splat_f32(sink_of(scoring, item, row) * np.float32(LOG2_E) - largest))

    if is_kind(scoring, ProfileBias):
        return sunk_by_query
    return sunk if is_kind(scoring, AttentionSink) else lambda scoring, item, row, largest, total: splat_f32(total)


@stage
def cap_rows(team, rows, logits, cap):
    """Cap rows of logits, float32 [>= rows, a multiple of 16], in place; cap : `SoftCap`."""
    vectors = rows * logits.shape[1] // LANES
    first, last = share_of(team, vectors)
    for i in range(first * LANES, last * LANES, LANES):
        store_f32(logits, i, soft_cap(load_f32(logits, i), cap.cap))
