import io
import sys

from screen import Terminal

from tinychat.commands.progress import progress_bar


def test_nothing_to_wait_for_shows_nothing(monkeypatch):
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("working"):
            pass
        assert stream.getvalue() == ""


def test_a_log_gets_the_title_once(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("working") as report:
        report(1, 3)
        report(2, 3)
    assert sys.stderr.getvalue() == "working\n"


def test_a_title_cannot_send_escape_codes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("converting a\x1b]0;b\x07\nc\u202ed") as report:
            report(1, 1)
        assert "converting a␛]0;b␇ c\ufffdd" in stream.getvalue()
        assert not {"\x07", "\u202e"} & set(stream.getvalue())


def test_a_terminal_gets_a_bar_that_vanishes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("working") as report:
        report(1, 4)
        report(4, 4)
    drawn = sys.stderr.getvalue()
    assert "working" in drawn
    assert "100%" in drawn
    assert drawn.endswith("\x1b[2K")
