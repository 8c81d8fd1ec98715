"""States of recurrent layers: whatever is done to sequences, each computes what a fresh run of its ids computes."""

import engines
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tinychat.engine.blocks import BlockPool, sequence_bytes
from tinychat.engine.sequence import new_sequence
from tinychat.engine.states import Snapshots, State, state_bytes
from tinychat.errors import CacheFullError
from tinychat.generate.sequence import logits_of_all
from tinychat.kernels.sizes import BLOCK, SNAPSHOT

CONTEXT, LENGTH, SHARED = 1300, 1280, 700
SEQUENCES, POSITIONS = st.integers(0, 2), st.integers(0, LENGTH - 1)


# Gated DeltaNet, Mamba-2, Kimi Delta Attention beside latent attention, compressed attention, mixtures of blocks.
@pytest.fixture(
    scope="module",
    params=[
        "qwen3.5",
        "granite-hybrid",
        "kimi-linear",
        "zaya",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("falcon-h1", "nemotron-h", "inkling2-loop")),
    ],
)
def folder(request, folders):
    return folders(request.param, "f32")


def open_engine(folder, threads=2, positions=None):
    return engines.open_engine(folder, threads, "f32", positions)


@pytest.fixture(scope="module")
def texts(folder):
    """Return two texts with the same beginning, and the logits after each of their tokens by one thread."""
    rng = np.random.default_rng(5)
    shared = rng.integers(0, 517, SHARED).tolist()
    found = [[*shared, *rng.integers(0, 517, LENGTH - SHARED).tolist()] for _ in range(2)]
    sequence = new_sequence(open_engine(folder, 1), CONTEXT)
    return found, [logits_of_all(sequence, text) for text in found]


class Sequences(RuleBasedStateMachine):
    """Three sequences of a pool; the ids of each begin one of the texts."""

    folder = texts = path = None

    @initialize()
    def begin(self):
        self.engine = open_engine(self.folder, positions=self.positions)
        self.sequences = [new_sequence(self.engine, CONTEXT) for _ in range(3)]
        self.texts_of = [0, 1, 0]

    positions = None

    def rest(self, i, count):
        sequence, text = self.sequences[i], self.texts[0][self.texts_of[i]]
        return text[len(sequence.ids) : len(sequence.ids) + count]

    def check(self, i, logits):
        end = len(self.sequences[i].ids)
        assert logits.tobytes() == self.texts[1][self.texts_of[i]][end - len(logits) : end].tobytes()

    def run_to(self, i, length, chunk=256):
        sequence = self.sequences[i]
        while len(sequence.ids) < length:
            ids = self.rest(i, min(chunk, length - len(sequence.ids)))
            try:
                self.check(i, sequence.step(ids, outputs=min(2, len(ids))))
            except CacheFullError:
                return sequence.release()

    @rule(i=SEQUENCES, count=st.sampled_from([1, 2, 63, 64, 150, 500]), chunk=st.sampled_from([1, 7, 200, 256]))
    def step(self, i, count, chunk):
        count = min(count, 30) if chunk == 1 else count
        self.run_to(i, min(LENGTH, len(self.sequences[i].ids) + count), chunk)

    @rule(i=SEQUENCES, j=SEQUENCES, counts=st.tuples(st.integers(1, 90), st.integers(1, 90)))
    def step_together(self, i, j, counts):
        parts = [(each, self.rest(each, count)) for each, count in zip((i, j), counts)]
        if i == j or not all(ids for _, ids in parts):
            return
        chunks = [self.sequences[each].chunk(ids, len(self.sequences[each].ids) + len(ids)) for each, ids in parts]
        try:
            rows = self.engine.run(chunks)
        except CacheFullError:
            return
        for (each, _), logits in zip(parts, rows):
            self.check(each, logits)

    @rule(i=SEQUENCES, share=st.floats(0, 1))
    def rewind(self, i, share):
        length = int(share * len(self.sequences[i].ids))
        self.sequences[i].rewind(length)
        assert len(self.sequences[i].ids) == length
        self.run_to(i, min(LENGTH, length + 3))

    @rule(i=SEQUENCES)
    def take_back(self, i):
        self.sequences[i].rewind(max(0, len(self.sequences[i].ids) - 1))

    @rule(i=SEQUENCES, share=st.floats(0, 1))
    def drop(self, i, share):
        """What follows cannot move: all from somewhere before on runs again."""
        stop = len(self.sequences[i].ids)
        self.sequences[i].drop(start := int(share * stop), stop)
        assert len(self.sequences[i].ids) <= start

    @rule(i=SEQUENCES, j=SEQUENCES)
    def fork(self, i, j):
        if i != j:
            self.sequences[j].release()
            self.sequences[j], self.texts_of[j] = self.sequences[i].fork(), self.texts_of[i]
            self.run_to(j, min(LENGTH, len(self.sequences[j].ids) + 70))

    @rule(i=SEQUENCES, text=st.integers(0, 1), length=st.integers(1, LENGTH))
    def begin_anew(self, i, text, length):
        ids = self.texts[0][text][:length]
        found = self.sequences[i].reuse(ids)
        assert self.sequences[i].ids == ids[:found]
        self.texts_of[i] = text
        self.run_to(i, length)

    @rule(i=SEQUENCES)
    def insert_prefix(self, i):
        """Others find all of its ids, and it goes on in its last block."""
        self.sequences[i].insert_prefix()

    @rule(i=SEQUENCES)
    def end(self, i):
        self.sequences[i].release()

    @rule(i=SEQUENCES, more=st.integers(1, 70))
    def save(self, i, more):
        sequence = self.sequences[i]
        length = len(sequence.ids)
        if sequence.save(self.path):
            other = new_sequence(open_engine(self.folder), CONTEXT)
            assert other.load(self.path) == length
            ids = self.texts[0][self.texts_of[i]][: length + more]
            assert other.reuse(ids) == min(length, len(ids) - 1) or length == LENGTH
            self.sequences[i], engine = other, self.engine
            self.run_to(i, len(ids))
            self.sequences[i], self.engine = sequence, engine


@pytest.mark.parametrize("positions", [None, 40 * BLOCK], ids=["much memory", "little memory"])
def test_any_order_of_operations(folder, texts, tmp_path, positions):
    Sequences.folder, Sequences.texts, Sequences.path = folder, texts, tmp_path / "saved.cache"
    Sequences.positions = positions
    machine = Sequences.TestCase
    machine.settings = settings(
        max_examples=12,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    machine("runTest").runTest()


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1023, 1030])
def test_no_more_than_512_positions_run_again(folder, texts, length):
    ids, run = texts[0][0], []
    sequence = new_sequence(open_engine(folder), CONTEXT)
    for start in range(0, LENGTH, 100):
        sequence.step(ids[start : start + 100])
    work = sequence.engine.run
    sequence.engine.run = lambda chunks, out=None: run.extend(chunks[0].ids) or work(chunks, out)
    sequence.rewind(length)
    assert run == ids[length - len(run) : length] and len(run) <= length % SNAPSHOT
    assert sequence.step(ids[length : length + 1]).tobytes() == texts[1][0][length : length + 1].tobytes()
    assert (length - 1) // SNAPSHOT * SNAPSHOT <= sequence.reuse([*ids[: length - 1], 5]) < length


def test_a_message_s_end_is_gone_back_to(folder, texts):
    """Undo of a turn runs nothing again, in the sequence itself and in a new one that shares its blocks."""
    ids = texts[0][0]
    sequence = new_sequence(open_engine(folder), CONTEXT)
    sequence.step(ids[:130])
    assert sequence.reuse(ids[:300]) == 130
    sequence.step(ids[130:300])
    other = sequence.another()
    assert sequence.reuse([*ids[:130], 7]) == 130
    assert sequence.step(ids[130:131]).tobytes() == texts[1][0][130:131].tobytes()
    sequence.insert_prefix()
    assert other.reuse([*ids[:131], 8]) == 131


def test_undo_in_a_long_conversation_runs_little_again(folder):
    """Of 8,000 tokens, whichever turns are taken back, and with or without the snapshots at ends of messages."""
    turn, turns = 731, 11
    ids = np.random.default_rng(6).integers(0, 517, turn * turns).tolist()
    engine = open_engine(folder, positions=20 * turn)
    sequence = new_sequence(engine, 12 * turn)
    for end in range(turn, len(ids) + 1, turn):
        sequence.reuse(ids[:end])
        run_to(sequence, ids, end)
    for end in (len(ids) - turn, len(ids) - turn - 100, len(ids) - 3 * turn):
        found = sequence.reuse([*ids[:end], 7])
        assert 0 <= end - found <= SNAPSHOT
        run_to(sequence, ids, end + turn)
    fresh = new_sequence(open_engine(folder, positions=20 * turn), 12 * turn)
    assert run_to(sequence, ids, len(ids)) == run_to(fresh, ids, len(ids))


def test_sixteen_sequences_in_one_step(folder, texts):
    """Each has its own length, some share their past, and two texts take turns."""
    engine = open_engine(folder)
    sequences = [new_sequence(engine, CONTEXT) for _ in range(15)]
    for i, sequence in enumerate(sequences):
        run_to(sequence, texts[0][i % 2], 40 + 81 * i)
    sequences.append(sequences[3].fork())
    for count in (1, 2, 15, 1):
        ends = [len(sequence.ids) for sequence in sequences]
        text_of = [*(i % 2 for i in range(15)), 1]
        chunks = [
            sequence.chunk(texts[0][text][end : end + count], end + count)
            for sequence, text, end in zip(sequences, text_of, ends)
        ]
        for logits, text, end in zip(engine.run(chunks), text_of, ends):
            assert logits.tobytes() == texts[1][text][end + count - 1 : end + count].tobytes()


def run_to(sequence, text, *lengths):
    for length in lengths:
        for start in range(len(sequence.ids), length, 256):
            logits = sequence.step(text[start : min(start + 256, length)])
    return logits[-1].tobytes()


def fail_full(*arguments):
    raise CacheFullError("")


@pytest.mark.parametrize(("is_shared", "is_full"), [(False, False), (True, False), (True, True)])
def test_snapshots_of_what_was_overwritten_are_gone(folder, texts, is_shared, is_full, monkeypatch):
    (first, second), (_, expected) = texts
    sequence = new_sequence(open_engine(folder), CONTEXT)
    for length in (SHARED - 2, SHARED + 2):
        run_to(sequence, first, length)
        sequence.cache.insert_snapshot()
    if is_shared:
        sequence.insert_prefix()
    sequence.rewind(SHARED - 2)
    if is_full:
        monkeypatch.setattr(BlockPool, "copy", fail_full)
    run_to(sequence, second, SHARED + 4, SHARED + 7)
    sequence.rewind(SHARED + 3)
    assert run_to(sequence, second, SHARED + 9) == expected[SHARED + 8].tobytes()


def test_states_before_the_last_step_are_those_of_its_ids(folder, texts):
    (first, second), (_, expected) = texts
    engine = open_engine(folder)
    sequence, other = (new_sequence(engine, CONTEXT) for _ in range(2))
    run_to(other, second, 1100)
    other.release()
    run_to(sequence, first, SHARED + 20, SHARED + 30)
    assert sequence.reuse(second[:1099]) == 1024
    sequence.rewind(SHARED + 50)
    assert run_to(sequence, second, SHARED + 51) == expected[SHARED + 50].tobytes()


def test_a_step_that_fails_leaves_the_state_before_it(folder, texts, monkeypatch):
    ids = texts[0][0]
    sequence = new_sequence(open_engine(folder), CONTEXT)
    sequence.step(ids[:70])
    with monkeypatch.context() as patch:
        run = sequence.engine._workers.run

        def fail(*arguments):
            run(*arguments)
            raise KeyboardInterrupt

        patch.setattr(sequence.engine._workers, "run", fail)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                sequence.step([3, 4, 5])
    assert sequence.step(ids[70:80]).tobytes() == texts[1][0][79:80].tobytes()


def test_memory_of_states_is_counted(folder):
    engine = open_engine(folder)
    one, by_position = state_bytes(engine.config), engine.pool.position_bytes
    # Layers of 352 channels with three earlier inputs, and six heads of 16 x 48; or of 432, and three heads of 48 x 48;
    # or of 256, with inputs and outputs of one position, and a value of 32 channels; or three earlier inputs of two
    # branches of 96 channels, of keys and of values.
    numbers = {352: 3 * 352 + 6 * 16 * 48, 432: 3 * 432 + 3 * 48 * 48, 256: 2 * 256 + 32, 96: 3 * 4 * 96}
    assert one == len(engine.config.state_layers) * 4 * numbers[engine.config.recurrence.channels]
    assert sequence_bytes(engine.config, "f32", 1024) == 1024 * by_position + 5 * one
    pool = open_engine(folder, positions=100 * BLOCK).pool
    assert pool._limit < 100, "a part of the memory is for snapshots"


def test_the_least_recently_used_snapshot_goes_first():
    snapshots, states = Snapshots(limit=3), [State(1) for _ in range(5)]
    for i, state in enumerate(states[:3]):
        snapshots.put([7, 8, 9], 64 * i + 5, state)
    assert snapshots.find([7, 8, 9], 100) == (69, states[1])
    assert snapshots.find([7], 64) == (5, states[0])
    snapshots.put([7, 8, 9], 192, states[3])
    assert [position for position, _ in snapshots.of_table([7, 8, 9], 192)] == [5, 69, 192]
    assert snapshots.find([7, 8, 9], 191) == (69, states[1])


def test_snapshots_go_with_their_blocks():
    snapshots, (first, second) = Snapshots(limit=8), (State(1), State(1))
    snapshots.put([7], 5, first)
    snapshots.put([7], 30, second)
    snapshots.copy(7, 8, 10)
    snapshots.cut(7, 5)
    assert [list(snapshots.of_table([block], 64)) for block in (7, 8)] == [[(5, first)], [(5, first)]]
    snapshots.cut(7)
    assert snapshots.find([7], 64) == (0, None) and len(snapshots) == 1
    assert first.is_shared and first.address % 64 == 0
