"""Ctrl-C before any line of a step: replies go on to the same tokens, and each block of the cache stays its owners'."""

import gc
import signal
import sys
from collections import Counter
from pathlib import Path

import engines
import numpy as np
import pytest
from fake_model import Letters

from tinychat.engine.sequence import new_sequence
from tinychat.generate.drafts import Drafts
from tinychat.generate.model import Model
from tinychat.generate.run import Room
from tinychat.kernels.sizes import BLOCK

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are another thing there")

BLOCKS = 9
CONTEXT = 256
OURS = ("/tinychat/engine/", "/tinychat/generate/", "/tinychat/held_signals.py", "/contextlib.py")


class Press:
    """Presses Ctrl-C before line `place` of all that run in files of ours inside the block."""

    def __init__(self, place):
        self.left = place

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_exception):
        sys.settrace(self.before)

    def trace(self, frame, event, argument):
        if not any(part in frame.f_code.co_filename for part in OURS):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self.trace


@pytest.fixture(scope="module")
def folder(folders):
    return folders("qwen3-window")


def model_of(folder):
    """Return a model whose memory is too small for its replies and what earlier ones left."""
    engine = engines.open_engine(folder, threads=2, positions=BLOCKS * BLOCK)
    return Model(new_sequence(engine, CONTEXT), Letters(), None, frozenset(), Path("model"), Drafts())


class Conversation:
    """Does with a model all that moves blocks; goes on where Ctrl-C came."""

    def __init__(self, model):
        self.model, self.presses = model, 0
        self.ids = engines.draw_ids(model, 230)
        fields = {"ignore_eos": True, "temperature": 0.0}
        self.streams = [
            model.stream(self.ids[:150], max_tokens=12, **fields),
            model.stream([*self.ids[:140], 7], max_tokens=45, **fields),
            model.stream(self.ids, max_tokens=32, make_room=self.make_room, **fields),
        ]

    def make_room(self, reply_ids):
        """Drop what the prompt has behind its beginning."""
        return Room(self.ids[:10] + self.ids[160:], 150)

    def run(self):
        self.attempt(lambda: next(self.streams[0]))
        for stream in self.streams:
            self.attempt(stream.to_end)
            self.attempt(stream.to_end)  # where it was interrupted
        self.attempt(lambda: next(self.model.stream(self.ids[:100], max_tokens=3)))  # which nobody keeps
        gc.collect()
        self.attempt(lambda: self.model.resize(CONTEXT + BLOCK))
        self.attempt(lambda: self.model.logits(self.ids[:100]))
        self.attempt(lambda: self.model.next_logits(self.ids[:145]))

    def attempt(self, function):
        try:
            function()
        except KeyboardInterrupt:
            self.presses += 1

    def outcome(self):
        logits = self.model.next_logits(self.ids[:149])
        return [*(stream.reply.token_ids for stream in self.streams), logits.tobytes()]


def assert_sound(pool):
    tables = [table for owner, table in pool._tables if owner() is not None]
    owners = Counter(pool.prefixes.blocks())
    for table in tables:
        owners.update(block for block in table if block >= 0)
    assert pool.used == len(owners)
    assert +pool._owners == owners
    assert sorted([*owners, *pool._free]) == list(range(pool.capacity)), "no block is lost, none is free and owned"


def count_lines(folder):
    """Return how many lines run in a conversation, and what comes of it."""
    with Press(0) as counting:
        conversation = Conversation(model_of(folder))
        conversation.run()
    assert_sound(conversation.model.engine.pool)
    return -counting.left, conversation.outcome()


@pytest.mark.parametrize("trials", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_a_conversation_goes_on_after_ctrl_c_at_any_line(folder, trials):
    before = signal.getsignal(signal.SIGINT)
    Conversation(model_of(folder)).run()  # compiles, which holds signals in its own way
    lines, expected = count_lines(folder)
    assert lines > 10_000
    presses = 0
    for place in np.random.default_rng(trials).integers(lines // 10, lines, trials).tolist():
        model = model_of(folder)
        conversation = Conversation(model)
        gc.collect()
        with Press(place):
            conversation.run()
        presses += conversation.presses
        assert conversation.outcome() == expected, f"after Ctrl-C before line {place}"
        assert_sound(model.engine.pool)
        assert signal.getsignal(signal.SIGINT) is before
        model.close()
        gc.collect()
        assert model.engine.pool.used == len(model.engine.pool.prefixes)
        del model, conversation
    assert presses > trials / 2
