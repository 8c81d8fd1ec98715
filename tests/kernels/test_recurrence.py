"""Gated DeltaNet, Kimi Delta Attention, Mamba-2 and Mamba against the formulas; the same bits on any threads."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import reference
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.engine.states import State
from tinychat.kernels.channel_delta import channel_factors, channel_rule, norm_sigmoid
from tinychat.kernels.delta_net import convolve, delta_factors, delta_rule, norm_gated
from tinychat.kernels.mamba import norm_groups, scan_steps, step_factors
from tinychat.kernels.selective import norm_selective, scan_selective
from tinychat.kernels.sizes import SNAPSHOT
from tinychat.kernels.variants import SelectiveGains

GROUPS, HEADS, TAPS, LAYERS = 2, 6, 4, 2
RATE_SCALE = 1.25
LAYER = 1  # of those with a state


class Rows(NamedTuple):
    """Of a batch, what these stages read."""

    counts: np.ndarray
    positions: np.ndarray
    firsts: np.ndarray
    states: np.ndarray


def dims(size, groups=GROUPS):
    states = {"key_heads": groups, "value_heads": HEADS, "key_dim": 16, "value_dim": size, "taps": TAPS}
    factors = {"rate_scale": np.float32(RATE_SCALE), "state_norm_eps": np.float32(1e-5)}
    return ModelDims(0, 3, 32, 0, 0, np.float32(1e-6), **states, **factors)


class Inputs:
    """The projections of T positions, and the parameters of a layer; some heads forget at once, some hardly."""

    groups = GROUPS

    def __init__(self, rng, T, size):
        self.sizes, self.channels = dims(size, self.groups), 2 * self.groups * 16 + HEADS * size
        self.columns = HEADS * size
        self.x = rng.standard_normal((T, self.channels + self.columns)).astype(np.float32)
        self.gates = rng.standard_normal((T, 2 * HEADS + 3)).astype(np.float32)
        self.taps = rng.uniform(-1, 1, (self.channels, TAPS)).astype(np.float32)
        self.log_decay = np.linspace(-8, 4, HEADS).astype(np.float32)
        self.bias, self.gain = (rng.standard_normal(n).astype(np.float32) for n in (HEADS, size))
        self.gates[0, :HEADS], self.gates[0, HEADS : 2 * HEADS] = 90, -90  # rates of 1, and steps of 0
        self.taps_bias = np.zeros(0, np.float32)
        self.layer_floats = (TAPS - 1) * self.channels + HEADS * 16 * size

    def new_state(self):
        state = State(LAYERS * self.layer_floats)
        state.numbers[:] = UNTOUCHED
        return state

    def run(self, parts, threads=1):
        """Run rows of some sequences: ``(first, last, state before, its successor, state in between)`` of each.

        Positions are those of the rows; returns the results [T, Hv dv].
        """
        at = np.concatenate([np.arange(first, last) for first, last, *_ in parts])
        ends = np.cumsum([0, *(last - first for first, last, *_ in parts)])
        states = np.array([[state.address if state else 0 for state in held] for _, _, *held in parts], np.int64).T
        wanted = [(first // SNAPSHOT + 1) * SNAPSHOT if held[2] else 0 for first, _, *held in parts]
        states = np.vstack([states, wanted])
        batch = Rows(np.array([len(at), 0, len(parts)]), at, ends, np.ascontiguousarray(states))
        x, T = self.x[at].copy(), len(at)
        factors = np.full((T, 2 * (HEADS + self.groups) + 1), UNTOUCHED, np.float32)
        out = np.full((T, self.columns + 16), UNTOUCHED, np.float32)
        taps = np.ascontiguousarray(self.taps.T).reshape(-1)
        on_threads(convolve, threads, batch, x, taps, self.taps_bias, np.int64(LAYER), self.sizes)
        self.scan(threads, T, batch, x, self.gates[at].copy(), factors, out)
        assert (out[:, -16:] == UNTOUCHED).all() and (factors[:, -1] == UNTOUCHED).all()
        return out[:, :-16]

    def scan(self, threads, T, batch, x, gates, factors, out):
        on_threads(delta_factors, threads, T, gates, self.log_decay, self.bias, x, self.sizes, factors)
        on_threads(delta_rule, threads, batch, x, factors, np.int64(LAYER), self.sizes, out)
        on_threads(norm_gated, threads, T, x, self.gain, self.sizes, out)

    def matrices(self, state):
        """Return the matrices of the layer [Hv, dk, dv]; of Mamba, those of channels [C, N]."""
        whole = state.numbers.reshape(LAYERS, -1)
        assert (whole[0] == UNTOUCHED).all(), "another layer's part stays as it is"
        found = whole[LAYER, (TAPS - 1) * self.channels :].reshape(HEADS, -1, 16, 16)
        return found.transpose(0, 2, 1, 3).reshape(HEADS, 16, -1)

    def expected(self):
        """Return the result of the formulas, and the state after the last position."""
        qkv, z = np.split(self.x.astype(np.float64), [self.channels], axis=1)
        qkv = reference.silu(reference.causal_convolution(qkv, self.taps))
        q, k, v = np.split(qkv, [GROUPS * 16, 2 * GROUPS * 16], axis=1)
        q, k = (each.reshape(len(self.x), GROUPS, 16) for each in (q, k))
        heads = (len(self.x), HEADS, -1)
        rates, steps = (self.gates[:, : 2 * HEADS].astype(np.float64).reshape(-1, 2, HEADS)[:, i] for i in range(2))
        decays = np.exp(-np.exp(self.log_decay.astype(np.float64)) * np.logaddexp(0, steps + self.bias))
        out, state = reference.delta_rule(q, k, v.reshape(heads), decays, RATE_SCALE / (1 + np.exp(-rates)))
        normed = reference.rms_norm(out, self.gain, 1e-5) * reference.silu(z.reshape(heads))
        return normed.reshape(len(self.x), -1), state


class MambaInputs(Inputs):
    """The same of Mamba-2; steps are bounded."""

    def __init__(self, rng, T, size):
        super().__init__(rng, T, size)
        self.gates[0, :HEADS] = 90
        self.taps_bias, self.skip = (rng.standard_normal(n).astype(np.float32) for n in (self.channels, HEADS))
        self.gain = rng.standard_normal(HEADS * size).astype(np.float32)
        self.limits = np.array([0.1, 2], np.float32)

    def scan(self, threads, T, batch, x, gates, factors, out):
        on_threads(step_factors, threads, T, gates, self.log_decay, self.bias, self.limits, self.sizes, factors)
        on_threads(scan_steps, threads, batch, x, factors, self.skip, np.int64(LAYER), self.sizes, out)
        on_threads(norm_groups, threads, T, self.gain, self.sizes, out)

    def expected(self):
        mixed, z = np.split(self.x.astype(np.float64), [self.channels], axis=1)
        mixed = reference.silu(reference.causal_convolution(mixed, self.taps) + self.taps_bias)
        x, keys = np.split(mixed, [HEADS * self.sizes.value_dim], axis=1)
        x, (b, c) = x.reshape(len(x), HEADS, -1), keys.reshape(len(x), 2, GROUPS, 16).transpose(1, 0, 2, 3)
        steps = np.logaddexp(0, self.gates[:, :HEADS].astype(np.float64) + self.bias).clip(*self.limits)
        out, state = reference.state_space(x, b, c, np.exp(-np.exp(self.log_decay.astype(np.float64)) * steps), steps)
        gated = (out + self.skip[:, None] * x).reshape(z.shape) * reference.silu(z)
        normed = reference.rms_norm(gated.reshape(len(x), GROUPS, -1), self.gain.reshape(GROUPS, -1), 1e-6)
        return normed.reshape(z.shape), state


class SelectiveInputs(Inputs):
    """The same of Mamba, whose channels have steps of their own."""

    groups, rank = 0, 32

    def __init__(self, rng, T, size):
        super().__init__(rng, T, size)
        C = self.columns
        self.sizes = self.sizes._replace(value_heads=1, value_dim=C)
        self.low = rng.standard_normal((T, self.rank + 2 * 16 + 1)).astype(np.float32)
        self.steps = rng.standard_normal((T, C + 1)).astype(np.float32)
        self.steps[0, : C // 2], self.steps[0, C // 2 :] = 9, -90
        self.taps_bias, self.skip = (rng.standard_normal(C).astype(np.float32) for _ in range(2))
        self.decays = np.exp(rng.uniform(-8, 4, (C, 16))).astype(np.float32)
        self.gains = SelectiveGains(*(rng.standard_normal(n).astype(np.float32) for n in (self.rank, 16, 16)))

    def scan(self, threads, T, batch, x, gates, factors, out):
        low, steps = (each[batch.positions] for each in (self.low, self.steps))
        on_threads(norm_selective, threads, T, self.gains, self.sizes, low)
        assert_within(low, self.normed()[batch.positions], 30 * EPS * (1 + np.abs(low)))
        decays = np.ascontiguousarray(self.decays.T).reshape(-1)
        parameters = self.gains, decays, self.skip, np.int64(LAYER), self.sizes
        on_threads(scan_selective, threads, batch, x, steps, low, *parameters, out)

    def normed(self):
        """Return the vectors of steps, keys and queries, normed."""
        parts = np.split(self.low.astype(np.float64), np.cumsum([self.rank, 16, 16]), axis=1)
        return np.concatenate([*map(reference.rms_norm, parts, self.gains, [1e-6] * 3), parts[3]], axis=1)

    def expected(self):
        x, z = np.split(self.x.astype(np.float64), 2, axis=1)
        x = reference.silu(reference.causal_convolution(x, self.taps) + self.taps_bias)
        b, c = np.split(self.normed()[:, self.rank : -1], 2, axis=1)
        steps = np.logaddexp(0, self.steps[:, :-1].astype(np.float64))
        out, state = reference.selective_scan(x, steps, self.decays.astype(np.float64), b, c)
        return (out + self.skip * x) * reference.silu(z), state

    def matrices(self, state):
        return super().matrices(state).transpose(0, 2, 1).reshape(-1, 16)


class ChannelInputs(Inputs):
    """The same of Kimi Delta Attention, whose heads have keys of their own; some channels forget at once."""

    groups, rank, bound = HEADS, 16, 0.0

    def __init__(self, rng, T, size):
        super().__init__(rng, T, size)
        keys = HEADS * 16
        self.steps = rng.standard_normal((T, keys)).astype(np.float32)
        self.bias = np.linspace(-6, 6, keys).astype(np.float32)
        self.gates = rng.standard_normal((T, self.rank + HEADS + 3)).astype(np.float32)
        self.steps[0], self.gates[0, self.rank : self.rank + HEADS] = -90, 90
        self.sizes = self.sizes._replace(decay_rank=self.rank, decay_bound=np.float32(self.bound))

    def scan(self, threads, T, batch, x, gates, factors, out):
        decays = np.full((T, 2 * HEADS * 16 + 1), UNTOUCHED, np.float32)
        decays[:, : HEADS * 16], z = self.steps[batch.positions], np.ascontiguousarray(x[:, self.channels :])
        sizes = self.sizes
        on_threads(channel_factors, threads, T, gates, self.log_decay, self.bias, x, sizes, decays, factors)
        on_threads(channel_rule, threads, batch, x, decays, factors, np.int64(LAYER), sizes, out)
        on_threads(norm_sigmoid, threads, T, z, self.gain, sizes, out)
        assert (decays[:, -1] == UNTOUCHED).all()

    def expected(self):
        qkv, z = np.split(self.x.astype(np.float64), [self.channels], axis=1)
        qkv = reference.silu(reference.causal_convolution(qkv, self.taps))
        heads = (len(self.x), HEADS, -1)
        q, k, v = (each.reshape(heads) for each in np.split(qkv, [HEADS * 16, 2 * HEADS * 16], axis=1))
        steps = (self.steps.astype(np.float64) + self.bias).reshape(heads)
        decays = reference.channel_decays(steps, self.log_decay.astype(np.float64), self.bound)
        rates = RATE_SCALE / (1 + np.exp(-self.gates[:, self.rank : self.rank + HEADS].astype(np.float64)))
        out, state = reference.delta_rule(q, k, v, decays, rates)
        normed = reference.rms_norm(out, self.gain, 1e-5) / (1 + np.exp(-z.reshape(heads)))
        return normed.reshape(len(self.x), -1), state


class BoundedInputs(ChannelInputs):
    """The same of Ling 3.0: nothing stands before the rates, and decays have a bound."""

    rank, bound = 0, -5.0


KINDS = pytest.mark.parametrize("kind", [Inputs, ChannelInputs, BoundedInputs, MambaInputs, SelectiveInputs])


# Columns in whole tiles of four vectors, and not.
@pytest.mark.parametrize("size", [64, 48])
@pytest.mark.parametrize("T", [1, 2, 90])
@KINDS
def test_formulas(kind, size, T, rng):
    inputs = kind(rng, T, size)
    after = inputs.new_state()
    out = inputs.run([(0, T, None, after, None)], threads=2)
    expected, state = inputs.expected()
    assert_within(out, expected, 300 * EPS * (1 + np.abs(expected)))
    assert_within(inputs.matrices(after), state, 100 * EPS * (1 + np.abs(state)))


@pytest.mark.parametrize("size", [64, 48])
@KINDS
def test_same_bits_in_any_chunks_on_any_threads_beside_others(kind, size, rng):
    T = SNAPSHOT + 40
    inputs = kind(rng, T, size)
    last, between = inputs.new_state(), inputs.new_state()
    together = inputs.run([(0, T, None, last, between)], threads=3)
    states, parts, cuts = [None], [], [0, 1, 3, 90, SNAPSHOT, SNAPSHOT + 1, T]
    for first, end in pairwise(cuts):
        states.append(inputs.new_state())
        parts.append(inputs.run([(first, end, states[-2], states[-1], None)]))
    assert np.concatenate(parts).tobytes() == together.tobytes()
    assert states[-1].numbers.tobytes() == last.numbers.tobytes()
    assert states[cuts.index(SNAPSHOT)].numbers.tobytes() == between.numbers.tobytes()
    # Two at once, one of them from its beginning; what a step begins with stays.
    before = states[2].numbers.copy()
    pair = [(3, 90, states[2], inputs.new_state(), None), (0, 1, None, inputs.new_state(), None)]
    assert inputs.run(pair, threads=2).tobytes() == np.concatenate([parts[2], parts[0]]).tobytes()
    assert pair[0][3].numbers.tobytes() == states[3].numbers.tobytes()
    assert states[2].numbers.tobytes() == before.tobytes()
