import io

import pytest

from tinychat.chat.line_input import PlainInput, open_input
from tinychat.errors import SettingError


def test_lines_come_without_their_ends():
    lines = PlainInput(io.StringIO("one\n\ntwo\r\nthree"))
    assert [lines.read() for _ in range(4)] == ["one", "", "two", "three"]
    with pytest.raises(EOFError):
        lines.read()


def test_input_that_is_not_utf8_is_refused():
    stream = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
    with pytest.raises(SettingError, match="not valid UTF-8"):
        PlainInput(stream).read()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stdin", "stdout"), [(io.StringIO, Terminal), (Terminal, io.StringIO)])
def test_one_side_without_terminal_is_never_interactive(stdin, stdout):
    assert not open_input(stdin(), stdout(), Terminal(), {}).interactive


def test_a_dumb_terminal_gets_a_plain_prompt():
    err = Terminal()
    lines = open_input(Terminal("hi\n"), Terminal(), err, {"TERM": "dumb"})
    assert lines.interactive
    assert lines.read() == "hi"
    assert err.getvalue() == "> "
