"""One-shots are kept, found again and gone on with."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from console import Console
from fake_model import ASSISTANT, EOS, USER, Replies, fake_model

from tinychat.conversation import one_shots
from tinychat.conversation.messages import Message
from tinychat.conversation.one_shots import OneShots
from tinychat.conversation.session_file import SavedSession
from tinychat.errors import SessionError
from tinychat.settings import LoadSettings


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(Replies("Hello!", "Fine.", "Bye.")), monkeypatch, capsys)


@pytest.fixture
def home():
    return Path(os.environ["TINYCHAT_HOME"])


def logged(home):
    return sorted((home / "log").glob("*.json"))


def read_by(model):
    """Return the bytes that a model has read, and the marks between messages."""
    names = {USER: b"<user>", ASSISTANT: b"<assistant>", EOS: b"<eos>"}
    return b"".join(names.get(i, b"") if i > 255 else bytes([i]) for i in model.sequence.ids)


def test_a_one_shot_goes_on(console):
    assert console.run("Who are you?") == (0, "Hello!\n", "")
    assert console.run("-c", "And why?") == (0, "Fine.\n", "")
    assert b"<user>Who are you?<assistant>Hello!<eos><user>And why?<assistant>" in read_by(console.model)
    assert console.run("complete", "--continue", "-p", "So?") == (0, "Bye.\n", "")
    assert b"Hello!<eos><user>And why?<assistant>Fine.<eos><user>So?<assistant>" in read_by(console.model)


def test_it_goes_on_with_the_model_and_the_settings_of_then(console):
    console.run("complete", "-m", "story", "Who?", "--system", "Be kind.", "--temperature", "0.3", "--context", "200")
    console.run("-c", "And?", "--temperature", "0.4", "--json")
    assert console.loaded == [("story", LoadSettings(context=200))] * 2
    assert b"Be kind." in read_by(console.model)
    console.run("-c", "And?", "-m", "other", "--context", "100")
    assert console.loaded[-1] == ("other", LoadSettings(context=100))


def test_it_is_one_conversation_of_the_log(console, home):
    console.run("Who are you?")
    console.run("-c", "And why?")
    (file,) = logged(home)
    messages = json.loads(file.read_text())["messages"]
    assert [message["content"] for message in messages] == ["Who are you?", "Hello!", "And why?", "Fine."]


def test_without_one_there_is_nothing_to_go_on_with(console):
    code, out, err = console.run("-c", "And why?")
    assert (code, out, console.loaded) == (1, "", [])
    assert err == 'error: there is no one-shot to go on with: ask one first, as in tinychat "Why ...?"\n'
    assert console.run("-c", "x", "--raw")[0] == 2


def test_nobody_else_can_read_the_log(console, home):
    console.run("Who are you?")
    (file,) = logged(home)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("flags", [["--no-log"], ["--json"], ["--jsonl"], ["-n", "2"]])
def test_what_is_not_kept(console, home, flags):
    assert console.run("Who are you?", *flags)[0] == 0
    assert logged(home) == []


def test_a_configuration_may_keep_nothing(console, home):
    (home / "config.toml").write_text("log = false")
    console.run("Who are you?")
    assert logged(home) == []
    console.run("Who are you?", "--log")
    assert len(logged(home)) == 1


def test_a_reply_that_was_stopped_is_kept_as_far_as_it_came(console, home):
    def press(count):
        if count == 12:
            raise KeyboardInterrupt

    console.model = fake_model(Replies("Hello there!"), before_step=press)
    assert console.run("Who?")[0] == 130
    (file,) = logged(home)
    last = json.loads(file.read_text())["messages"][-1]
    assert "Hello there!".startswith(last["content"]) and last["content"] and last["partial"]
    console.model = fake_model(Replies("Hello there!"), before_step=lambda _count: press(12))
    assert console.run("Why?")[0] == 130
    assert logged(home) == [file], "of a reply that never began there is nothing to keep"


def test_the_log_lists_the_newest_first_shows_one_and_finds_words(console):
    console.run("What is a whale?")
    console.run("And a goat?")
    _, listed, _ = console.run("log")
    newest, oldest = listed.splitlines()
    assert newest.endswith("  And a goat?") and oldest.endswith("  What is a whale?")
    name = oldest.split()[0]
    assert console.run("log", name) == (0, "> What is a whale?\n\nHello!\n", "")
    assert console.run("log", "--search", "WHALE") == (0, f"{oldest}\n", "")
    assert console.run("log", "-s", "hello") == (0, f"{oldest}\n{'':<{len(name)}}  Hello!\n", "")
    assert console.run("log", "-s", "zebra") == (0, "", "no one-shot contains 'zebra'\n")


def test_the_log_says_what_is_wrong(console, home):
    assert console.run("log") == (0, "", 'no one-shots yet: ask one with tinychat "Why is the sky blue?"\n')
    console.run("Who are you?")
    (file,) = logged(home)
    code, out, err = console.run("log", f"{file.stem}0")
    assert (code, out, err) == (1, "", f"error: there is no conversation '{file.stem}0': did you mean {file.stem}?\n")
    assert console.run("log", file.stem, "--clear")[0] == 2
    file.write_text("{")
    assert console.run("log")[1] == f"{file.stem}  damaged\n"
    assert console.run("-c", "x")[0] == 1
    assert console.run("log", "--clear") == (0, "", "removed 1\n")
    assert logged(home) == []


def test_a_chat_takes_one_over(console, home):
    console.run("complete", "Who are you?", "--system", "Be kind.", "-m", "story")
    (file,) = logged(home)
    before = file.read_bytes()
    console.loaded.clear()
    code, out, _ = console.run("chat", "--resume", file.stem, stdin=b"And why?\n")
    assert (code, out, console.loaded) == (0, "Fine.\n", [("story", LoadSettings())])
    assert b"Be kind.<user>Who are you?<assistant>Hello!<eos><user>And why?<assistant>" in read_by(console.model)
    saved = json.loads((home / "sessions" / file.name).read_text())
    assert [message["content"] for message in saved["messages"]] == ["Who are you?", "Hello!", "And why?", "Fine."]
    assert file.read_bytes() == before, "the log has what was asked there"


def test_a_chat_that_writes_nothing_takes_one_over_too(console, home):
    console.run("Who are you?")
    (file,) = logged(home)
    code, out, _ = console.run("chat", "--private", "--resume", file.stem, stdin=b"And why?\n")
    assert (code, out) == (0, "Fine.\n")
    assert not (home / "sessions").exists()


def session(text):
    return SavedSession(messages=[Message("user", text), Message("assistant", "a")])


def test_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(one_shots, "MOST", 3)
    log = OneShots(tmp_path)
    names = [log.keep(session(f"{number}")) for number in range(5)]
    for age, name in enumerate(names[2:]):
        os.utime(tmp_path / "log" / f"{name}.json", (age, age))
    assert log.names() == names[:1:-1]
    large = log.keep(session("x" * 10_000))
    monkeypatch.setattr(one_shots, "MOST_BYTES", log.size(large) + 1)
    monkeypatch.setattr(one_shots, "MOST", 200)
    newest = log.keep(session("y" * 5_000))
    assert log.names() == [newest]


def test_what_goes_on_twice_becomes_two(tmp_path):
    log = OneShots(tmp_path)
    name = log.keep(session("first"))
    revision = log.revision(name)
    assert log.keep(session("second"), name, revision) == name
    os.utime(tmp_path / "log" / f"{name}.json", (1, 1))
    other = log.keep(session("third"), name, revision)
    assert {log.messages(each)[0].content for each in (name, other)} == {"second", "third"}
    with pytest.raises(SessionError, match="there is no one-shot"):
        OneShots(tmp_path / "none").last()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
def test_a_home_that_others_can_write_to_costs_the_log_only(console, home):
    home.chmod(0o777)
    assert console.run("Who are you?") == (0, "Hello!\n", "")
    assert logged(home) == []
    code, _, err = console.run("log")
    assert (code, err) == (1, f"error: the log of one-shots cannot be opened: other users can write to {home}\n")
