"""Convolutions that are added to their input against the formula; the same bits in any chunks on any threads."""

from itertools import pairwise

import numpy as np
import pytest
import reference_mixtures
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads
from kernels.test_recurrence import Rows

from tinychat.engine.arguments import ModelDims
from tinychat.engine.states import State
from tinychat.kernels.residual_convolution import convolve_by_token, convolve_rows
from tinychat.kernels.sizes import SNAPSHOT

OFFSET = 48  # of the convolution's part of a state; as much stands behind it
# Positions that are seen, heads, and the size of a head.
SIZES = pytest.mark.parametrize(("taps", "H", "d"), [(2, 3, 16), (3, 2, 48), (4, 1, 80), (5, 3, 32)])
KINDS = pytest.mark.parametrize("by_token", [False, True])


class Inputs:
    """The rows of T positions and their taps."""

    def __init__(self, rng, T, taps, H, d, by_token):
        self.channels, self.back, self.by_token, C = H * d, taps - 1, by_token, H * d
        self.sizes = ModelDims(0, 0, d, 0, 0, np.float32(1e-6), taps=taps)
        self.x = rng.standard_normal((T, C + 16)).astype(np.float32)
        self.taps = rng.uniform(-1, 1, (taps, C)).astype(np.float32)
        self.token_taps = rng.uniform(-1, 1, (T, H * taps + 3)).astype(np.float32)

    def new_state(self):
        state = State(2 * OFFSET + self.back * self.channels)
        state.numbers[:] = UNTOUCHED
        return state

    def run(self, parts, threads=1):
        """Run rows of some sequences, as `test_recurrence.Inputs.run`."""
        at = np.concatenate([np.arange(first, last) for first, last, *_ in parts])
        ends = np.cumsum([0, *(last - first for first, last, *_ in parts)])
        states = np.array([[state.address if state else 0 for state in held] for _, _, *held in parts], np.int64).T
        wanted = [(first // SNAPSHOT + 1) * SNAPSHOT if held[2] else 0 for first, _, *held in parts]
        batch = Rows(np.array([len(at), 0, len(parts)]), at, ends, np.ascontiguousarray(np.vstack([states, wanted])))
        x = self.x[at].copy()
        if self.by_token:
            of_tokens = self.token_taps[at].copy()
            arguments = batch, x, self.taps.reshape(-1), of_tokens, np.int64(OFFSET), self.sizes
            on_threads(convolve_by_token, threads, *arguments)
        else:
            taps = self.taps[::-1].reshape(-1)
            on_threads(convolve_rows, threads, batch, x, taps, np.int64(OFFSET), self.sizes)
        np.testing.assert_array_equal(x[:, self.channels :], self.x[at, self.channels :])
        return x[:, : self.channels]

    def expected(self):
        """Return the result of the formula, and a tolerance."""
        x, of_tokens = self.x[:, : self.channels], None
        if self.by_token:
            of_tokens = self.token_taps[:, :-3].reshape(len(x), -1, self.back + 1).astype(np.float64)
        parts = np.abs(self.taps), None if of_tokens is None else np.abs(of_tokens)
        sizes = reference_mixtures.residual_convolution(np.abs(x), *parts)
        return reference_mixtures.residual_convolution(x, self.taps, of_tokens), (self.back + 6) * EPS * sizes

    def last_inputs(self, state):
        """Return the inputs that a state holds, [K - 1, C]."""
        assert (state.numbers[:OFFSET] == UNTOUCHED).all() and (state.numbers[-OFFSET:] == UNTOUCHED).all()
        return state.numbers[OFFSET:-OFFSET].reshape(self.back, self.channels)


@KINDS
@SIZES
@pytest.mark.parametrize("T", [1, 2, 3, 17, 200])
def test_formula(T, taps, H, d, by_token, rng):
    inputs = Inputs(rng, T, taps, H, d, by_token)
    after = inputs.new_state()
    out = inputs.run([(0, T, None, after, None)], threads=2)
    assert_within(out, *inputs.expected())
    # Zeros stand for what is before the first position.
    held = np.concatenate([np.zeros((taps - 1, H * d)), inputs.x[:, : H * d]])[-(taps - 1) :]
    np.testing.assert_array_equal(inputs.last_inputs(after), held)


@KINDS
@SIZES
def test_same_bits_in_any_chunks_on_any_threads_beside_others(taps, H, d, by_token, rng):
    T = SNAPSHOT + 40
    inputs = Inputs(rng, T, taps, H, d, by_token)
    last, between = inputs.new_state(), inputs.new_state()
    together = inputs.run([(0, T, None, last, between)])
    for threads in (2, 3):
        assert inputs.run([(0, T, None, inputs.new_state(), None)], threads).tobytes() == together.tobytes()
    drawn = np.sort(rng.choice(np.arange(1, T), 12, replace=False)).tolist()
    cuts = sorted({0, 1, SNAPSHOT, SNAPSHOT + 1, T, *drawn})
    states, parts = [None], []
    for threads, (first, end) in enumerate(pairwise(cuts)):
        states.append(inputs.new_state())
        parts.append(inputs.run([(first, end, states[-2], states[-1], None)], 1 + threads % 3))
    assert np.concatenate(parts).tobytes() == together.tobytes()
    assert states[-1].numbers.tobytes() == last.numbers.tobytes()
    assert states[cuts.index(SNAPSHOT)].numbers.tobytes() == between.numbers.tobytes()
    # Several at once, one of them from its beginning and one across a snapshot; what a step begins with stays.
    i = cuts.index(SNAPSHOT) - 1
    before, held = states[i].numbers.copy(), inputs.new_state()
    rows = [(cuts[i], T, states[i], inputs.new_state(), held), (0, 1, None, inputs.new_state(), None)]
    rows.append((1, cuts[2], states[1], inputs.new_state(), None))
    expected = np.concatenate([*parts[i:], parts[0], parts[1]])
    assert inputs.run(rows, threads=2).tobytes() == expected.tobytes()
    assert rows[0][3].numbers.tobytes() == last.numbers.tobytes()
    assert rows[2][3].numbers.tobytes() == states[2].numbers.tobytes()
    assert held.numbers.tobytes() == between.numbers.tobytes()
    assert states[i].numbers.tobytes() == before.tobytes()


@KINDS
def test_zeros_and_large_numbers(by_token, rng):
    inputs = Inputs(rng, 9, 3, 2, 16, by_token)
    inputs.x[:, :32] = np.float32(1e37) * np.sign(inputs.x[:, :32])
    inputs.x[:4, :16] = 0
    out = inputs.run([(0, 9, None, inputs.new_state(), None)])
    assert not out[:4, :16].any()
    assert_within(out, *inputs.expected())
