"""Mixtures of experts: who is chosen, which slot each choice has, and what comes out, for any load of the experts."""

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import ACTIVATIONS, EPS, assert_within, on_threads, random_weight, scratch_of
from kernels.test_inputs import NORM_EPS, padded_rows

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.buffers import ExpertScratch, max_slots
from tinychat.kernels.experts import (
    add_routed,
    carry_states,
    choose_experts,
    choose_mixed,
    choose_scored,
    clear_rows,
    group_rows,
    linear_routed,
    quantize_routed,
    quantize_routed_activated,
    scale_choices,
)
from tinychat.kernels.linear import tokens_per_tile
from tinychat.kernels.variants import BiasedRouter, LogitRouter, MixingRouter, NoNorm, SigmoidRouter, Silu
from tinychat.kernels.weights import Float32Weight, FloatActivations, Int4Weight

LANES = 16
# Whole groups of weights, for the experts' tests: hidden size and intermediate size.
D, F = 64, 32


def scratch_for(T, used, count, method="f32", choices=0):
    """Return scratch for T tokens, full of rubbish where a stage has to write first; choices : of the router."""
    slots = max_slots(T, used, choices or count)
    groups = slots * D // 32
    floats = np.full((2, groups), np.nan, np.float32)
    quantized = ACTIVATIONS(np.full(slots * D, 77, np.int8), floats[0], np.zeros(groups, np.int32), floats[1])
    x = FloatActivations(np.full(slots * D, np.nan, np.float32)) if method == "f32" else quantized
    return ExpertScratch(
        routing=scratch_of(FloatActivations(np.zeros(LANES, np.float32)), 1, LANES),
        x=x,
        logits=np.full((T, (count + LANES) // LANES * LANES + LANES), np.nan, np.float32),
        chosen=np.full((T, used), -1, np.int64),
        weights=np.full((T, used + 1), np.nan, np.float32),
        slots=np.full((T, used), -1, np.int64),
        counts=np.full(choices or count, 7, np.int64),
        firsts=np.full(choices or count, 7, np.int64),
        active=np.full(1 + count, 7, np.int64),
        gate_up=np.full((slots, 2 * F + LANES), np.nan, np.float32),
        down=np.full((slots, D), np.nan, np.float32),
        states=np.zeros((0, 0), np.float32),
        inner=np.zeros((0, 0), np.float32),
    )


def dims_of(norm_topk, shared_gate=False, groups=(1, 1)):
    return ModelDims(0, 0, 0, D, F, NORM_EPS, np.float32(1), F, 0, norm_topk, shared_gate, *groups)


@pytest.mark.parametrize("norm_topk", [True, False])
@pytest.mark.parametrize(("T", "used", "count"), [(1, 1, 1), (1, 4, 19), (17, 2, 16), (5, 6, 6)])
def test_choices(T, used, count, norm_topk, rng):
    # Few different numbers: there are ties.
    logits = rng.integers(-3, 4, (T, count + 1)).astype(np.float32) * np.float32(1.7)
    chosen, weights = reference.choose_experts(logits[:, :count].astype(np.float64), used, norm_topk)
    results = []
    for threads in (1, 2, 5):
        e = scratch_for(T, used, count)
        e.logits[:, : count + 1] = logits
        on_threads(choose_experts, threads, T, dims_of(norm_topk, shared_gate=True), e)
        assert (e.chosen == chosen).all()
        results.append(e.weights.tobytes())
    assert len(set(results)) == 1
    assert_within(e.weights[:, :used], weights, 16 * EPS * weights)
    gate = 1 / (1 + np.exp(-logits[:, count].astype(np.float64)))
    assert_within(e.weights[:, used], gate, 16 * EPS * gate)


@pytest.mark.parametrize("router", [SigmoidRouter, BiasedRouter, LogitRouter])
@pytest.mark.parametrize("norm_topk", [True, False])
@pytest.mark.parametrize(
    ("T", "used", "count", "groups"),
    [
        (1, 1, 1, (1, 1)),
        (1, 4, 19, (1, 1)),
        (17, 2, 16, (1, 1)),
        (5, 6, 6, (1, 1)),
        (40, 3, 20, (4, 2)),
        (9, 4, 24, (12, 2)),
        (9, 2, 6, (3, 1)),
    ],
)
def test_choices_by_probabilities_and_biases(T, used, count, groups, norm_topk, router, rng):
    logits, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((T, count), count))
    attributes = norm_topk, *groups, router is SigmoidRouter
    chosen, weights = reference.choose_scored(logits.astype(np.float64), bias, used, *attributes)
    if router is LogitRouter:
        chosen, weights = reference.choose_by_logits(logits.astype(np.float64), bias, used, *attributes[:-1])
    results = []
    for threads in (1, 2, 5):
        e = scratch_for(T, used, count)
        e = e._replace(logits=np.full((T, 2 * (count + LANES) // LANES * LANES + LANES), np.nan, np.float32))
        e.logits[:, :count] = logits
        on_threads(choose_scored, threads, T, router(bias), dims_of(norm_topk, groups=groups), e)
        assert (e.chosen == chosen).all()
        results.append(e.weights.tobytes())
    assert len(set(results)) == 1
    assert_within(e.weights[:, :used], weights, 16 * EPS * weights)
    assert (e.weights[:, used] == 1).all()


@pytest.mark.parametrize("reach", [0.02, 0.5, 3.0])
@pytest.mark.parametrize(("T", "used", "count"), [(1, 1, 1), (17, 2, 16), (40, 3, 19), (5, 6, 6)])
def test_choices_by_logits_that_are_near(T, used, count, reach, rng):
    # Few different numbers: there are ties, and differences beyond the reach.
    logits = rng.integers(-6, 7, (T, count)).astype(np.float32) * np.float32(0.31)
    reach = np.float32(reach)
    chosen, weights = reference.choose_mixed(logits.astype(np.float64), used, np.float64(reach))
    results = []
    for threads in (1, 2, 5):
        e = scratch_for(T, used, count)
        e.logits[:, :count] = logits
        on_threads(choose_mixed, threads, T, MixingRouter(np.array([reach])), e)
        assert (e.chosen == chosen).all()
        results.append(e.weights.tobytes())
    assert len(set(results)) == 1
    assert_within(e.weights[:, :used], weights, 16 * EPS * weights)
    assert (e.weights[:, used] == 1).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_weights_are_times_a_number_of_each_expert(threads, rng):
    T, used, count = 9, 3, 7
    e, scale = scratch_for(T, used, count), rng.standard_normal(count).astype(np.float32)
    e.chosen[:], e.weights[:] = draw_choices(rng, T, used, count), rng.standard_normal((T, used + 1))
    expected = np.concatenate([e.weights[:, :used] * scale[e.chosen], e.weights[:, used:]], axis=1)
    on_threads(scale_choices, threads, T, scale, e)
    np.testing.assert_array_equal(e.weights, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_cleared(threads):
    out = np.full((6, 48), np.nan, np.float32)
    on_threads(clear_rows, threads, 5, np.zeros((6, 32), np.float32), out)
    assert not out[:5, :32].any() and np.isnan(out[5:]).all() and np.isnan(out[:, 32:]).all()


def test_numbers_that_are_not_finite_choose_experts_that_exist(rng):
    e = scratch_for(3, 4, 6)
    e.logits[1:, :7] = rng.standard_normal(7)
    e.logits[1, 3], e.logits[2, :6] = np.inf, -np.inf
    on_threads(choose_experts, 1, 3, dims_of(True), e)
    assert (e.weights[:, 4] == 1).all()
    assert ((e.chosen >= 0) & (e.chosen < 6)).all()
    on_threads(group_rows, 1, 3, e)
    assert e.counts.sum() == 12


def draw_choices(rng, T, used, count):
    """Draw who is chosen: many tokens choose the first, none the last."""
    odds = np.geomspace(1, 0.05, count - 1)
    odds /= odds.sum()
    return np.stack([rng.choice(count - 1, used, replace=False, p=odds) for _ in range(T)])


@pytest.mark.parametrize(("T", "used", "count"), [(1, 3, 9), (2, 1, 4), (60, 3, 9), (256, 2, 40)])
def test_slots_of_an_expert_begin_with_a_tile_and_keep_the_order_of_tokens(T, used, count, rng):
    e = scratch_for(T, used, count)
    e.chosen[:] = draw_choices(rng, T, used, count)
    on_threads(group_rows, 2, T, e)
    assert (e.counts == np.bincount(e.chosen.reshape(-1), minlength=count)).all()
    assert e.active[1 : 1 + e.active[0]].tolist() == np.flatnonzero(e.counts).tolist()
    taken = np.zeros(len(e.down), bool)
    for expert in np.flatnonzero(e.counts):
        slots = e.slots[e.chosen == expert]
        tile, first = tokens_per_tile.py_func(e.counts[expert]), e.firsts[expert]
        assert first % tile == 0
        assert slots.tolist() == list(range(first, first + e.counts[expert]))
        end = first + -(-len(slots) // tile) * tile
        assert not taken[first:end].any()
        taken[first:end] = True


def experts_of(method, rng, count, N, K):
    """Return weights of all experts, the last of which nobody may look at, and what they mean."""
    found = [random_weight(rng, method, N, K, bias=True) for _ in range(count)]
    stacked = [np.stack(parts) for parts in zip(*(weight for weight, _ in found))]
    kind = Float32Weight if method == "f32" else Int4Weight
    if method == "f32":
        stacked[0][-1] = np.nan
    stacked[-1][-1] = np.nan
    return kind(*stacked), [values for _, values in found]


def run_mixture(threads, T, hidden, chosen, weights, gate_up, down, method, skips=False):
    """Run the stages after the choice; return the new hidden states; skips : the last choice is no expert."""
    e = scratch_for(T, chosen.shape[1], len(down.bias), method, len(down.bias) + skips)
    e.chosen[:], e.weights[:, :-1] = chosen, weights
    rows, out = np.zeros((threads, D + LANES), np.float32), hidden.copy()
    tiles, sizes = scratch_of(e.x, threads, D).tiles, ModelDims(0, 0, 0, D, F, NORM_EPS)
    on_threads(group_rows, threads, T, e)
    on_threads(quantize_routed, threads, T, hidden, NoNorm(), sizes, gate_up, rows, e)
    on_threads(linear_routed, threads, gate_up, e.gate_up, tiles, e)
    on_threads(quantize_routed_activated, threads, T, Silu(), F, down, rows, e)
    on_threads(linear_routed, threads, down, e.down, tiles, e)
    on_threads(add_routed, threads, T, False, np.zeros((0, 0), np.float32), out, e)
    return out


@pytest.mark.parametrize("method", ["f32", "int4"])
def test_mixture(method, rng):
    """Any number of tokens and threads gives the same bits, and those of the formula; the last expert is NaN."""
    used, count, T = 3, 7, 61
    gate_up, gate_up_values = experts_of(method, rng, count, 2 * F, D)
    down, down_values = experts_of(method, rng, count, D, F)
    hidden = padded_rows(rng.standard_normal((T, D)).astype(np.float32), D)
    chosen, weights = draw_choices(rng, T, used, count), rng.random((T, used)).astype(np.float32)
    arguments = (gate_up, down, method)
    expected = run_mixture(1, T, hidden, chosen, weights, *arguments)
    for threads in (2, 5):
        assert run_mixture(threads, T, hidden, chosen, weights, *arguments).tobytes() == expected.tobytes()
    for t in (0, 17, 60):
        alone = run_mixture(2, 1, hidden[t : t + 1], chosen[t : t + 1], weights[t : t + 1], *arguments)
        assert alone.tobytes() == expected[t : t + 1].tobytes()
    formula = hidden.astype(np.float64)
    for t, j in np.ndindex(chosen.shape):
        n = chosen[t, j]
        inner = reference.linear(hidden[t : t + 1], gate_up_values[n], gate_up.bias[n])
        inner = reference.swiglu(*np.split(inner, 2, axis=1))
        formula[t] += weights[t, j] * reference.linear(inner, down_values[n], down.bias[n])[0]
    if method == "f32":
        assert_within(expected, formula, np.full(formula.shape, 1e-5 * np.std(formula)))
    # Activations of eight bits are off by 1/254 of the largest of their group, twice.
    assert np.sqrt(np.square(expected - formula).mean()) < 0.02 * np.std(formula)


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_may_pass_no_expert(threads, share, rng):
    count, T = 4, 61
    gate_up, _ = experts_of("f32", rng, count, 2 * F, D)
    down, _ = experts_of("f32", rng, count, D, F)
    hidden = rng.standard_normal((T, D)).astype(np.float32)
    chosen, weights = draw_choices(rng, T, 1, count), rng.random((T, 1)).astype(np.float32)
    expected = run_mixture(1, T, hidden, chosen, weights, gate_up, down, "f32")
    skipping = rng.random(T) < share
    found = run_mixture(
        threads, T, hidden, np.where(skipping[:, None], count, chosen), weights, gate_up, down, "f32", skips=True
    )
    np.testing.assert_array_equal(found[skipping], hidden[skipping])
    np.testing.assert_array_equal(found[~skipping], expected[~skipping])


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_carried_to_a_router_is_scaled(threads, rng):
    states, scale = rng.standard_normal((9, 48)).astype(np.float32), rng.standard_normal(40).astype(np.float32)
    found = states.copy()
    on_threads(carry_states, threads, 7, scale, found)
    np.testing.assert_array_equal(found[:7, :40], states[:7, :40] * scale)
    np.testing.assert_array_equal(found[7:], states[7:])
    np.testing.assert_array_equal(found[:, 40:], states[:, 40:])
