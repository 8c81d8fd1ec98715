"""Noticing that a reply repeats itself."""

import io

import pytest
from fake_model import Replies, fake_model

from tinychat.chat.repl import Repl
from tinychat.conversation.conversation import Chat
from tinychat.generate.repetition import LONGEST, TOKENS, Repetition
from tinychat.terminal.rendering import Renderer


def found_at(ids):
    repetition = Repetition()
    return [count for count, token_id in enumerate(ids, 1) if repetition.add([token_id])]


@pytest.mark.parametrize("period", [1, 2, 7, 30, LONGEST])
def test_a_run_that_comes_again_and_again_is_found_once(period):
    before = [*range(1000, 1050)]
    (place,) = found_at([*before, *[*range(period)] * (800 // period)])
    assert TOKENS <= place <= TOKENS + len(before) + period + 40


def test_a_list_whose_numbers_go_on_repeats_itself():
    (place,) = found_at([token_id for row in range(100) for token_id in (500 + row, *range(10))])
    assert place <= TOKENS + 20


@pytest.mark.parametrize(
    "ids",
    [
        [*range(1000)],
        [7] * (TOKENS - 1),
        [token_id for row in range(150) for token_id in (1, 2, row, 3, 500 + row, 4, 5, 900 + row)],
        [*range(LONGEST + 40)] * 6,
    ],
)
def test_other_replies_are_left_alone(ids):
    assert found_at(ids) == []


class Lines:
    interactive = False

    def __init__(self, *lines):
        self._lines = list(lines)

    def read(self, _prompt):
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)


def test_a_chat_points_it_out_once():
    chat = Chat(fake_model(Replies("again " * 100, "fine"), context_size=2048), temperature=0.0)
    out, err = io.StringIO(), io.StringIO()
    Repl(chat, Lines("hi", "ho"), Renderer(out, err, {})).run()
    assert err.getvalue() == "the reply repeats itself\n"
    assert out.getvalue() == "again " * 100 + "\nfine\n"
