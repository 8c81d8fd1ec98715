import io
import os

import pytest

from tinychat.chat.rendering import terminal_size


def test_a_stream_without_terminal_has_the_usual_size():
    assert terminal_size(io.StringIO()) == (80, 24)


@pytest.mark.parametrize(("reported", "size"), [((40, 10), (40, 10)), ((0, 0), (80, 24))])
def test_a_terminal_that_knows_no_size_has_the_usual_one(monkeypatch, reported, size):
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size(reported))
    with open(os.devnull) as stream:
        assert terminal_size(stream) == size
