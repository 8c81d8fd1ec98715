"""Mixtures of slots and messages against the formulas; the same bits however rows are shared out."""

from itertools import pairwise

import numpy as np
import pytest
import reference
import reference_mixtures
from kernels.kernel_inputs import EPS, UNTOUCHED, assert_within, on_threads

from tinychat.engine.arguments import ModelDims
from tinychat.kernels.block_mixtures import add_rows, load_slot, mix_slots, store_slot, take_message
from tinychat.models.block_mixtures import Seen

SLOTS, LENGTHS = 7, (1, 2, 3, 17, 200)
# The first slots, where further ones begin, how many these are, and whether the residual stream is one more.
RANGES = [(0, 0, 0, True), (3, 3, 0, True), (2, 4, 3, True), (1, 6, 1, True), (0, 4, 3, False), (2, 6, 1, False)]

lengths = pytest.mark.parametrize("T", LENGTHS)
widths = pytest.mark.parametrize("D", [16, 80])
some_threads = pytest.mark.parametrize("threads", [1, 2, 3])


def dims(D):
    return ModelDims(0, 0, 0, D, 0, np.float32(1e-6))


def rows_of(rng, T, width):
    """Draw rows, with more behind them and one below them, which no stage may write."""
    return np.pad(rng.standard_normal((T, width)).astype(np.float32), ((0, 1), (0, 16)), constant_values=UNTOUCHED)


def assert_kept_around(found, T, width):
    assert (found[T:] == UNTOUCHED).all() and (found[:, width:] == UNTOUCHED).all()


class Rows:
    """Slots and a residual stream of T tokens; slots that are not read are no numbers."""

    def __init__(self, rng, T, D, ranges):
        first, other, others, self.takes_hidden = ranges
        self.T, self.D, self.ranges = T, D, ranges
        self.slots, self.hidden = rows_of(rng, T, SLOTS * D), rows_of(rng, T, D)
        # The query is one of several.
        self.queries, self.query = rng.standard_normal(3 * D).astype(np.float32), D
        self.read = [*range(first), *range(other, other + others)]
        self.apart = self.slots[:T, : SLOTS * D].reshape(T, SLOTS, D)
        self.apart[:, [slot for slot in range(SLOTS) if slot not in self.read]] = np.nan
        if not self.takes_hidden:
            self.hidden[:] = np.nan

    def states(self):
        """Return the vectors that are mixed, [T, D] each."""
        return [self.apart[:, slot] for slot in self.read] + [self.hidden[: self.T, : self.D]] * self.takes_hidden

    def mix(self, threads=1):
        T, D, before = self.T, self.D, (self.slots.tobytes(), self.hidden.tobytes())
        first, other, others, takes_hidden = self.ranges
        out = np.full((T + 1, D + 16), UNTOUCHED)
        factors = np.full((T + 1, 2 * (first + others + 1) + 1), UNTOUCHED)
        at = Seen(first, other, others), self.hidden, takes_hidden, self.queries, self.query
        on_threads(mix_slots, threads, T, self.slots, *at, dims(D), factors, out)
        assert_kept_around(out, T, D)
        assert_kept_around(factors, T, factors.shape[1] - 1)
        assert (self.slots.tobytes(), self.hidden.tobytes()) == before
        return out[:T, :D]

    def expected(self):
        """Return the mixture, and a tolerance."""
        states, query = [state.astype(np.float64) for state in self.states()], self.queries[self.D : 2 * self.D]
        units = np.stack([reference.rms_norm(state, 1.0, reference_mixtures.EPS) for state in states], axis=1)
        weights = reference.softmax(units @ query / np.sqrt(self.D))
        # A lane of each sum is rounded D / 16 times; what a score is off by moves its weight by as much of itself.
        steps = self.D / 16 + 12
        scores = steps * (np.abs(units) @ np.abs(query) / np.sqrt(self.D)).max(axis=1, keepdims=True)
        sizes = np.einsum("tj,tjd->td", weights, np.abs(units))
        return reference_mixtures.mixture(states, query), EPS * (2 * scores + steps) * sizes


@lengths
@widths
@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_slots_are_mixed(ranges, D, T, rng):
    rows = Rows(rng, T, D, ranges)
    out = rows.mix()
    assert_within(out, *rows.expected())
    for threads in (2, 3):
        assert rows.mix(threads).tobytes() == out.tobytes()


# Lengths do not count, but for vectors that are next to none.
@pytest.mark.parametrize("ranges", RANGES, ids=str)
def test_slots_of_all_sizes(ranges, rng):
    rows = Rows(rng, 5, 80, ranges)
    sizes = np.array([0, 1e-20, 1e-3, 1, 1e18], np.float32)
    for i, state in enumerate(rows.states()):
        state *= np.roll(sizes, i)[:, None]
    assert_within(rows.mix(), *rows.expected())


def test_a_slot_whose_squares_overflow_counts_as_zeros(rng):
    rows = Rows(rng, 3, 80, (2, 4, 1, True))
    rows.apart[:, 1] = 0
    zeros = rows.mix()
    rows.apart[:, 1] = 1e22 * np.sign(rng.standard_normal((3, 80)))
    assert rows.mix().tobytes() == zeros.tobytes()


@pytest.mark.parametrize("spread", [0.0, 30.0, 1000.0])
def test_flat_and_spiked_queries(spread, rng):
    rows = Rows(rng, 17, 80, (2, 4, 3, True))
    rows.queries *= np.float32(spread)
    assert_within(rows.mix(), *rows.expected())


@lengths
@widths
@some_threads
def test_messages_are_taken_in(threads, D, T, rng):
    x, message, R = rows_of(rng, T, D), rows_of(rng, T, D), 10
    before, heard = x[:T, :D].astype(np.float64), message[:T, :D].astype(np.float64)
    down, forget, gain = (rng.standard_normal(shape) for shape in ((R, 2 * D), (D, R), (D, R)))
    both = np.concatenate([reference.rms_norm(each, 1.0, 1e-6) for each in (before, heard)], axis=1)
    low = reference.linear(both, down / np.sqrt(2 * D))
    gates = rows_of(rng, T, 2 * D)
    gates[:T, : 2 * D] = np.concatenate([reference.linear(low, each) for each in (forget, gain)], axis=1)
    on_threads(take_message, threads, T, gates, message, dims(D), x)
    expected = reference_mixtures.with_message(before, heard, down / np.sqrt(2 * D), forget, gain, 1e-6)
    sizes = np.abs(before) + np.abs(heard)
    # Gates are rounded, and tanh is off by less than an ulp of 1.
    assert_within(x[:T, :D], expected, (8 + np.abs(gates[:T, : 2 * D]).max()) * EPS * sizes)
    assert_kept_around(x, T, D)
    assert_kept_around(message, T, D)


def test_gates_at_their_ends(rng):
    D, extreme = 16, np.array([-1e30, -1e4, -88, 0, 1e-30, 88, 1e4, 1e30], np.float32)
    x, message = rows_of(rng, 8, D), rows_of(rng, 8, D)
    before, heard = x[:8, :D].copy(), message[:8, :D]
    gates = np.zeros((8, 2 * D), np.float32)
    gates[:, :D], gates[:, D:] = extreme[:, None], extreme[::-1, None]
    on_threads(take_message, 1, 8, gates, message, dims(D), x)
    kept, taken = (np.array(factors)[:, None] for factors in ([2, 2, 2, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, -1, -1, -1]))
    assert_within(x[:8, :D], kept * before + taken * heard, 8 * EPS * (np.abs(before) + np.abs(heard)))


@lengths
@widths
@some_threads
def test_slots_are_stored_and_loaded(threads, D, T, rng):
    slots, x, sizes = rows_of(rng, T, SLOTS * D), rows_of(rng, T, D), dims(D)
    for slot in (0, 2, SLOTS - 1):
        expected = slots.copy()
        expected[:T, slot * D : (slot + 1) * D] = x[:T, :D]
        on_threads(store_slot, threads, T, x, slot, sizes, slots)
        np.testing.assert_array_equal(slots, expected)
        loaded = np.full_like(x, UNTOUCHED)
        on_threads(load_slot, threads, T, slots, slot, sizes, loaded)
        np.testing.assert_array_equal(loaded, x)
        x[:T, :D] *= 2


@lengths
@widths
@some_threads
def test_rows_are_added(threads, D, T, rng):
    first, second, out = rows_of(rng, T, D), rows_of(rng, T, D), np.full((T + 1, D + 16), UNTOUCHED)
    expected = first[:T, :D] + second[:T, :D]
    on_threads(add_rows, threads, T, first, second, dims(D), out)
    np.testing.assert_array_equal(out[:T, :D], expected)
    assert_kept_around(out, T, D)
    for target in (first, second):
        pair = first.copy(), second.copy()
        into = pair[target is second]
        on_threads(add_rows, threads, T, *pair, dims(D), into)
        np.testing.assert_array_equal(into, out)


def results(tokens, threads):
    """Return the results of all stages for some of 40 tokens."""
    rng, T, D = np.random.default_rng(5), len(tokens), 80
    rows = Rows(rng, 40, D, (2, 4, 3, True))
    at = [*tokens, 40]
    gates, message, slots, hidden = (
        rows_of(rng, 40, 2 * D)[at],
        rows_of(rng, 40, D)[at],
        rows.slots[at],
        rows.hidden[at],
    )
    factors, mixed, sizes = np.zeros((T + 1, 12), np.float32), np.zeros((T + 1, D + 16), np.float32), dims(D)
    sources = Seen(2, 4, 3), hidden, True, rows.queries, rows.query
    on_threads(mix_slots, threads, T, slots, *sources, sizes, factors, mixed)
    on_threads(take_message, threads, T, gates, message, sizes, mixed)
    on_threads(add_rows, threads, T, mixed, hidden, sizes, hidden)
    return np.concatenate([mixed[:T, :D], hidden[:T, :D]], axis=1)


def test_threads_and_chunks_write_the_same_bits(rng):
    one = results(range(40), 1)
    for threads in (1, 2, 3):
        assert one.tobytes() == results(range(40), threads).tobytes()
        cuts = [0, *np.sort(rng.choice(np.arange(1, 40), 5, replace=False)), 40]
        parts = [results(range(first, last), threads) for first, last in pairwise(cuts)]
        assert one.tobytes() == np.concatenate(parts).tobytes()
