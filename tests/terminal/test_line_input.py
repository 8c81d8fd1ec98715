import io

import pytest
from screen import Terminal

from tinychat.errors import SettingError
from tinychat.terminal.line_input import InputPrompt, PlainInput, is_open, unfence
from tinychat.terminal.open_input import open_input


def test_lines_come_without_their_ends():
    lines = PlainInput(io.StringIO("one\n\ntwo\r\nthree"))
    assert [lines.read(InputPrompt()) for _ in range(4)] == ["one", "", "two", "three"]
    with pytest.raises(EOFError):
        lines.read(InputPrompt())


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_input_that_is_not_utf8_is_refused(errors):
    """Python reads stdin with surrogates for such bytes in the locales C and POSIX."""
    stream = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8", errors=errors)
    with pytest.raises(SettingError, match="not valid UTF-8"):
        PlainInput(stream).read(InputPrompt())


@pytest.mark.parametrize(("stdin", "stdout"), [(io.StringIO, Terminal), (Terminal, io.StringIO)])
def test_one_side_without_terminal_is_never_interactive(stdin, stdout):
    assert not open_input(stdin(), stdout(), Terminal(), {}).interactive


def test_a_dumb_terminal_gets_a_plain_prompt():
    err = Terminal()
    lines = open_input(Terminal("hi\n"), Terminal(), err, {"TERM": "dumb"})
    assert lines.interactive
    assert lines.read(InputPrompt()) == "hi"
    assert err.getvalue() == "> "


def test_a_dumb_terminal_asks_on_until_the_fence_closes_and_shows_what_it_cannot_edit():
    err = Terminal()
    lines = open_input(Terminal('"""one\ntwo\n"""\n'), Terminal(), err, {"TERM": "dumb"})
    assert lines.read(InputPrompt(text="old \x1b")) == '"""one\ntwo\n"""'
    assert err.getvalue() == "old \u241b\n>     "


def test_a_fence_holds_several_lines_of_a_pipe():
    lines = PlainInput(io.StringIO('"""one\n\ntwo"""\nthree\n"""cut\noff'))
    assert [lines.read(InputPrompt()) for _ in range(3)] == ['"""one\n\ntwo"""', "three", '"""cut\noff']


@pytest.mark.parametrize("text", ['"""', '"""one', '"""one\ntwo', '""""'])
def test_an_open_fence_asks_for_more(text):
    assert is_open(text)


@pytest.mark.parametrize("text", ["", "plain", 'say """', '"""one"""', '"""\none\n"""', '"""one\ntwo""" '])
def test_a_closed_fence_or_none_is_complete(text):
    assert not is_open(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain", "plain"),
        ('"""one"""', "one"),
        ('"""\none\n\n  two\n"""', "one\n\n  two"),
        ('"""one\ntwo""" ', "one\ntwo"),
        ('"""cut short', "cut short"),
    ],
)
def test_fences_are_not_part_of_the_message(text, message):
    assert unfence(text) == message
