import re
import sys
from xml.etree import ElementTree

import picture
import pytest
from fake_model import EOS, Replies, fake_model
from fake_tools import call


def bare(lines):
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in lines]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("one\ntwo", ["one", "two"]),
        ("reading 5 %\r\x1b[Ktext", ["text"]),
        ("| a\n| b\r\x1b[1Anew a\x1b[K\nnew b and c", ["new a", "new b and c"]),
        ("grows", ["grows"]),
        ("a\nb\nc\r\x1b[2Anew\x1b[J\nend", ["new", "end"]),
    ],
)
def test_the_screen_shows_what_was_written_last(written, lines):
    screen = picture.Screen()
    screen.write(written)
    assert screen.lines() == lines


def test_a_picture_shows_the_conversation(monkeypatch, tmp_path):
    reply = "A **bold** list:\n\n- one <b>\n- two\n"
    monkeypatch.setattr(picture, "load", lambda name: fake_model(Replies(reply), name=name))
    monkeypatch.setattr(sys, "argv", ["picture.py", "demo", str(tmp_path / "chat.svg"), "Hello & hi"])
    picture.main()
    svg = ElementTree.parse(tmp_path / "chat.svg")
    text = "".join("".join(element.itertext()) for element in svg.iter("{http://www.w3.org/2000/svg}text"))
    for part in ("> Hello & hi", "A bold list:", " • one <b>", " • two", "tok/s"):
        assert part.replace(" ", "\xa0") in text.replace(" ", "\xa0")


def test_a_conversation_ends_as_the_terminal_shows_it(monkeypatch):
    monkeypatch.setattr(picture, "load", lambda name: fake_model(Replies("Hello!", "Bye."), name=name))
    lines = bare(picture.converse(picture.parsed(["demo", "chat.svg", "hi", "bye"])))
    assert lines[0].startswith("demo Ctrl-C stops")
    said = ["> hi", "Hello!", "> bye", "Bye."]
    assert [line for line in lines if line in said] == said


def test_prescribed_replies_call_tools_with_consent(monkeypatch, tmp_path):
    pytest.importorskip("llguidance")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("It will rain.")
    replies = [call("read_file", path="notes.txt"), "It says that it will rain."]
    flags = ["--tools", "files", *(word for reply in replies for word in ("--reply", reply))]
    monkeypatch.setattr(picture, "load", lambda name: fake_model(lambda ids: EOS, name=name, context_size=4096))
    lines = bare(picture.converse(picture.parsed(["demo", "chat.svg", "what?", "y", *flags])))
    shown = [line for line in lines if line.startswith(("y/", "read_file", "It says"))]
    assert [line.split(" · ")[0] for line in shown] == ["y/a/t/n/r> y", 'read_file(path="notes.txt")', replies[1]]
    assert shown[1].endswith("13 bytes")
