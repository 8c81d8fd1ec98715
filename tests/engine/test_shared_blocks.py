"""Several sequences on one pool, whatever is done to them: each computes what it would compute alone."""

import copy
import itertools
from collections import Counter

import engines
import hypothesis.strategies as st
import numpy as np
import pytest
import reference
from engine.test_engine import assert_close, held_weights
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tinychat.engine.cache import GONE
from tinychat.engine.sequence import new_sequence
from tinychat.errors import CacheFullError
from tinychat.generate.sequence import logits_of_all
from tinychat.kernels.sizes import BLOCK

CONTEXT, LONGEST = 300, 400
BLOCKS = 12  # of the pool: too few for all sequences at once
SEQUENCES = st.integers(0, 2)


# Windows and normed heads; one latent for all heads.
@pytest.fixture(scope="module", params=["qwen3-window", "youtu-halves"])
def folder(request, folders):
    return folders(request.param)


def small_engine(folder, blocks):
    return engines.open_engine(folder, threads=2, positions=blocks * BLOCK)


class Sequences(RuleBasedStateMachine):
    """Three sequences that share a pool; of each, what was done to it is noted, and done again alone to compare."""

    folder = None

    @initialize()
    def begin(self):
        self.engine, self.alone = small_engine(self.folder, BLOCKS), small_engine(self.folder, 3 * BLOCKS)
        self.sequences = [new_sequence(self.engine, CONTEXT) for _ in range(3)]
        self.histories = [[], [], []]
        self.rng = np.random.default_rng(1)

    def ids(self, count):
        # Few different ones: beginnings meet.
        return self.rng.integers(0, 2, count).tolist() if count > 3 else self.rng.integers(0, 517, count).tolist()

    def expect(self, i):
        """Return the logits of the last step, and the ids, of a sequence that has done the same alone."""
        sequence, logits = new_sequence(self.alone, LONGEST), None
        pool = self.alone.pool
        pool.release(pool.prefixes.evict(pool.capacity, lambda block: True))
        for operation, *arguments in self.histories[i]:
            result = getattr(sequence, operation)(*arguments)
            logits = result if operation == "step" else logits
        ids = list(sequence.ids)
        sequence.release()
        return logits, ids

    @rule(i=SEQUENCES, count=st.sampled_from([1, 2, 17, 63, 64, 90]))
    def step(self, i, count):
        sequence, ids = self.sequences[i], self.ids(count)
        if len(sequence.ids) + count > sequence.context_size:
            return
        try:
            logits = sequence.step(ids)
        except CacheFullError:
            sequence.release()
            self.histories[i] = []
            return
        self.histories[i].append(("step", ids))
        np.testing.assert_array_equal(logits, self.expect(i)[0])

    @rule(
        pairs=st.lists(
            st.tuples(SEQUENCES, st.sampled_from([1, 3, 30])), min_size=2, max_size=3, unique_by=lambda p: p[0]
        )
    )
    def step_together(self, pairs):
        parts = [(i, self.ids(count)) for i, count in pairs if len(self.sequences[i].ids) + count <= 200]
        if not parts:
            return
        chunks = [self.sequences[i].chunk(ids, len(self.sequences[i].ids) + len(ids)) for i, ids in parts]
        try:
            rows = self.engine.run(chunks)
        except CacheFullError:
            return
        for (i, ids), logits in zip(parts, rows):
            self.histories[i].append(("step", ids))
            np.testing.assert_array_equal(logits, self.expect(i)[0])

    @rule(i=SEQUENCES, share=st.floats(0, 1))
    def rewind(self, i, share):
        length = int(share * len(self.sequences[i].ids))
        self.sequences[i].rewind(length)
        self.histories[i].append(("rewind", length))

    @rule(i=SEQUENCES, shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
    def drop(self, i, shares):
        start, stop = sorted(int(share * len(self.sequences[i].ids)) for share in shares)
        self.sequences[i].drop(start, stop)
        self.histories[i].append(("drop", start, stop))

    @rule()
    def shrink(self):
        pool = self.engine.pool
        pool.shrink()
        assert max(pool._owners, default=-1) < len(pool.arrays[0])

    @rule()
    def grow_again(self):
        self.engine.pool.grow_again()

    @rule(i=SEQUENCES, context_size=st.integers(200, LONGEST))
    def resize(self, i, context_size):
        if context_size >= len(self.sequences[i].ids):
            self.sequences[i].resize(context_size)
            self.histories[i].append(("resize", context_size))

    @rule(i=SEQUENCES, j=SEQUENCES)
    def fork(self, i, j):
        if i != j:
            self.sequences[j].release()
            self.sequences[j] = self.sequences[i].fork()
            self.histories[j] = copy.copy(self.histories[i])

    @rule(i=SEQUENCES)
    def insert_prefix(self, i):
        """Others find all of its ids, and it goes on in its last block."""
        self.sequences[i].insert_prefix()

    @rule(i=SEQUENCES)
    def forget(self, i):
        self.sequences[i].evict()
        self.histories[i] = []

    @rule(i=SEQUENCES, count=st.sampled_from([20, 64, 150]))
    def begin_anew(self, i, count):
        """A prompt that may begin like what was there before: its tokens are found again, or run."""
        ids = [*self.sequences[(i + 1) % 3].ids[: count // 2], *self.ids(count)]
        found = self.sequences[i].reuse(ids)
        assert self.sequences[i].ids == ids[:found]
        if any(operation == "drop" for operation, *_ in self.histories[i]):
            # What follows a drop is used again by its own sequence, but is not what a fresh run computes.
            self.sequences[i].rewind(0)
            found = 0
        try:
            for start in range(found, len(ids), 256):
                logits = self.sequences[i].step(ids[start : start + 256])
        except CacheFullError:
            self.sequences[i].release()
            self.histories[i] = []
            return
        self.histories[i] = [("step", ids[start : start + 256]) for start in range(0, len(ids), 256)]
        np.testing.assert_array_equal(logits, self.expect(i)[0])

    @rule()
    def memory_is_accounted_for(self):
        pool = self.engine.pool
        owned = {block for sequence in self.sequences for block in sequence.cache.table} | set(pool.prefixes.blocks())
        assert pool.used == len(owned)
        tables = [sequence.cache.table for sequence in self.sequences]
        assert +pool._owners == Counter(itertools.chain(pool.prefixes.blocks(), *tables))
        for i, sequence in enumerate(self.sequences):
            assert sequence.ids == self.expect(i)[1]


# The last one has heads of two sizes, some of which read other layers' keys.
@pytest.mark.parametrize("name", ["qwen3-window", "youtu-halves", "gemma4"])
def test_any_order_of_operations(name, folders):
    Sequences.folder = folders(name)
    machine = Sequences.TestCase
    machine.settings = settings(
        max_examples=25,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()


def test_what_is_forgotten_is_found_only_as_far_as_others_share_it(folder):
    engine = small_engine(folder, 2 * BLOCKS)
    first = new_sequence(engine, CONTEXT)
    ids = engines.draw_ids(first, 3 * BLOCK)
    texts = [ids[: 2 * BLOCK + 10], [*ids[:BLOCK], *reversed(ids[:BLOCK])], ids]
    sequences = [first, new_sequence(engine, CONTEXT), new_sequence(engine, CONTEXT)]
    for sequence, text in zip(sequences[:2], texts):
        sequence.step(text)
        sequence.release()

    def found(text):
        sequence = new_sequence(engine, CONTEXT)
        count = sequence.reuse([*text, 0])
        sequence.release()
        return count

    assert [found(text) for text in texts] == [2 * BLOCK + 10, 2 * BLOCK, 2 * BLOCK + 10]
    first.reuse([*texts[0], 0])
    first.evict()
    assert [found(text) for text in texts] == [BLOCK, 2 * BLOCK, BLOCK]
    # A shorter text than one that is there is nobody's own.
    first.reuse([*texts[1][: BLOCK + 5], 0])
    first.evict()
    assert [found(text) for text in texts] == [BLOCK, 2 * BLOCK, BLOCK]
    first.reuse([*texts[1], 0])
    first.evict()
    assert [found(text) for text in texts] == [0, 0, 0] and engine.pool.used == 0


def test_what_shares_blocks_is_near_the_reference(folder):
    """Prefixes found again, forks and steps together: against the float64 formulas on the weights that are held."""
    engine = engines.open_engine(folder, threads=2, kv="bf16")
    config, weights = held_weights(folder)
    first = new_sequence(engine, CONTEXT)
    ids = engines.draw_ids(first, 200)
    first.step(ids[:150])
    second = new_sequence(engine, CONTEXT)
    assert second.reuse(ids[:140]) == 128
    third = first.fork()
    tails = [ids[150:], ids[128:150], ids[100:140]]
    chunks = [
        sequence.chunk(tail, len(sequence.ids) + len(tail), outputs=len(tail))
        for sequence, tail in zip((first, second, third), tails)
    ]
    for sequence, tail, got in zip((first, second, third), tails, engine.run(chunks)):
        expected = reference.decoder_logits(config, weights, sequence.ids)[-len(tail) :]
        assert_close(got, expected, 0.04, 0.9)


@pytest.fixture(scope="module")
def windowed(folders):
    """Return a model all of whose layers have a window, of 20 positions."""
    return folders("mistral-window")


def test_blocks_that_nothing_sees_are_given_back(windowed):
    engine = small_engine(windowed, 5)
    sequence = new_sequence(engine, 256)
    ids = engines.draw_ids(sequence, 250)
    expected = logits_of_all(engines.open_sequence(windowed, context_size=256), ids)
    for start in range(0, 250, 10):
        np.testing.assert_array_equal(sequence.step(ids[start : start + 10], outputs=10), expected[start : start + 10])
    # One more than is seen is kept, for tokens that are taken back.
    assert sequence.cache.table[:2] == [GONE, sequence.cache.table[1]] != [GONE] * 2
    # Of five blocks three are kept: another sequence may have the others.
    other = new_sequence(engine, 256)
    other.step(ids[100:190])
    np.testing.assert_array_equal(sequence.step(ids[:1])[-1], sequence_after(windowed, [*ids, ids[0]]))


def sequence_after(folder, ids):
    return logits_of_all(engines.open_sequence(folder, context_size=256), ids)[-1]


def test_what_was_given_back_is_computed_again(windowed):
    engine = small_engine(windowed, 12)
    ids = engines.draw_ids(engine, 250)
    for change in ("rewind", "reuse", "drop", "fork"):
        sequence = new_sequence(engine, 256)
        logits_of_all(sequence, ids)
        if change == "rewind":
            sequence.rewind(100)
        elif change == "reuse":
            found = sequence.reuse([*ids[:100], 7])
            assert sequence.ids == ids[:found]
            sequence.step(ids[found:100]) if found < 100 else None
        elif change == "drop":
            sequence.drop(10, 160)
        else:
            sequence = sequence.fork()
            sequence.rewind(245)
        np.testing.assert_array_equal(sequence.step([5])[-1], sequence_after(windowed, list(sequence.ids)))
