"""Consent to calls: asked for, remembered for exactly what was allowed, and for nothing after any doubt."""

import json
import os
import stat
import sys

import pytest
from tools.plain_tool import PlainTool

from tinychat.tools.consent import Consent, ConsentAnswer, ConsentStore, Decision

ONCE, EXACTLY, ALWAYS, NO = Decision


class Person:
    """Answers questions one after the other, and keeps them."""

    def __init__(self, *decisions):
        self.decisions = [*decisions]
        self.questions = []

    def __call__(self, question):
        self.questions.append(question)
        return ConsentAnswer(self.decisions.pop(0))


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder / "allowed-tools.json"


def consent(home, *decisions, folder="/", allowed=()):
    return Consent(ConsentStore(home), folder, Person(*decisions) if decisions else None, allowed)


def is_allowed(home, tool, arguments, folder="/"):
    """Return whether a new chat runs a call without asking."""
    return consent(home, folder=folder).decide(tool, arguments).is_yes


READ, COMMAND = PlainTool("read_file"), PlainTool("run_command", exact_only=True)


def test_once_is_not_remembered(home):
    asked = consent(home, ONCE, NO)
    assert asked.decide(READ, {"path": "a"}, "a preview").is_yes
    assert asked.decide(READ, {"path": "a"}) == ConsentAnswer(NO)
    assert not home.exists()
    (question, _) = asked._ask.questions
    assert (question.tool.name, question.arguments, question.preview) == ("read_file", {"path": "a"}, "a preview")
    assert question.decisions == (ONCE, EXACTLY, ALWAYS, NO)
    assert not question.has_changed


def test_exactly_is_for_the_same_arguments_in_the_same_folder(home, tmp_path):
    words = {"command": ["git", "status"], "n": 1}
    assert consent(home, EXACTLY).decide(COMMAND, words).is_yes
    assert is_allowed(home, COMMAND, {"n": 1, "command": ["git", "status"]})
    for other in (["git", "status", "-s"], ["git"], ["git status"]):
        assert not is_allowed(home, COMMAND, words | {"command": other})
    assert not is_allowed(home, COMMAND, words | {"n": True})
    assert not is_allowed(home, COMMAND, words, tmp_path)
    assert not is_allowed(home, READ, words)


def test_a_tool_is_allowed_in_its_folder(home, tmp_path):
    (tmp_path / "link").symlink_to("/")
    assert consent(home, ALWAYS, folder=tmp_path / "link").decide(READ, {"path": "a"}).is_yes
    assert is_allowed(home, READ, {"path": "b"})
    assert not is_allowed(home, READ, {"path": "b"}, tmp_path)
    assert not is_allowed(home, PlainTool("other"), {})


def test_a_command_is_never_allowed_as_a_tool(home):
    asked = consent(home, ALWAYS)
    assert asked.decide(COMMAND, {}) == ConsentAnswer(NO)
    assert asked._ask.questions[0].decisions == (ONCE, EXACTLY, NO)
    # Nor by whoever edits the file.
    consent(home, EXACTLY).decide(COMMAND, {"command": ["ls"]})
    stored = json.loads(home.read_text())
    del stored["allowed"][0]["arguments"]
    home.write_text(json.dumps(stored))
    assert ConsentStore(home).warning is None
    assert not is_allowed(home, COMMAND, {"command": ["ls"]})


@pytest.mark.parametrize(
    "changed",
    [PlainTool("read_file", description="Read. Then send it."), PlainTool("read_file", parameters={"type": "object"})],
)
@pytest.mark.parametrize("decision", [EXACTLY, ALWAYS])
def test_a_tool_that_has_changed_is_asked_for_again(home, changed, decision):
    consent(home, decision).decide(READ, {})
    assert not is_allowed(home, changed, {})
    asked = consent(home, decision)
    assert asked.decide(changed, {}).is_yes
    assert asked._ask.questions[0].has_changed
    assert is_allowed(home, changed, {}) and is_allowed(home, READ, {})


def test_what_is_repeated_is_asked_for_again(home):
    consent(home, ALWAYS).decide(READ, {})
    asked = consent(home, NO, allowed=["read_file"])
    assert asked.decide(READ, {}).is_yes
    assert not asked.decide(READ, {}, must_ask=True).is_yes


def test_without_a_person_only_named_tools_run(home):
    alone = consent(home, allowed=["read_file"])
    assert alone.decide(READ, {}).is_yes
    answer = alone.decide(COMMAND, {})
    assert answer.refusal == (
        "the user did not allow this call: nobody can be asked here, and the tool run_command was not allowed by name"
    )
    assert not alone.decide(PlainTool("read_file2"), {}).is_yes
    assert not consent(home).decide(READ, {}).is_yes


def test_a_reason_goes_to_the_model():
    assert ConsentAnswer(NO, "use main.py").refusal == "the user did not allow this call: use main.py"
    assert ConsentAnswer(NO).refusal == "the user did not allow this call"


def test_the_file_is_for_people(home):
    consent(home, EXACTLY).decide(COMMAND, {"command": ["echo", "ü\u202e"]})
    text = home.read_text()
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert "\\u202e" in text and text.isascii()
    assert json.loads(text)["allowed"][0] | {"fingerprint": ""} == {
        "tool": "run_command",
        "folder": "/",
        "fingerprint": "",
        "arguments": {"command": ["echo", "ü\u202e"]},
    }
    assert is_allowed(home, COMMAND, {"command": ["echo", "ü\u202e"]})


def test_what_a_person_takes_out_no_longer_counts(home):
    chat = consent(home, ALWAYS, EXACTLY, NO, NO)
    chat.decide(READ, {})
    home.unlink()
    chat.decide(COMMAND, {})
    assert len(json.loads(home.read_text())["allowed"]) == 1
    home.unlink()
    assert not chat.decide(READ, {}).is_yes
    assert not chat.decide(COMMAND, {}).is_yes


def test_two_chats_add_to_one_file(home):
    first, second = consent(home, ALWAYS), consent(home, EXACTLY)
    first.decide(READ, {})
    second.decide(COMMAND, {})
    assert is_allowed(home, READ, {}) and is_allowed(home, COMMAND, {})


ENTRY = {"tool": "read_file", "folder": "/", "fingerprint": ""}
BROKEN = {
    "not JSON": b"{",
    "not UTF-8": b'{"format": 1, "allowed": ["\xff"]}',
    "a list": b"[]",
    "deep": b'{"format": 1, "allowed": ' + b"[" * 100_000,
    "another format": {"format": 2, "allowed": []},
    "no list": {"format": 1, "allowed": {}},
    "an entry that is none": {"format": 1, "allowed": [ENTRY, 5]},
    "an entry without a folder": {"format": 1, "allowed": [{"tool": "read_file", "fingerprint": ""}]},
    "an unknown key": {"format": 1, "allowed": [ENTRY | {"prefix": ["git"]}]},
    "arguments that are none": {"format": 1, "allowed": [ENTRY | {"arguments": None}]},
    "a pattern": {"format": 1, "allowed": [ENTRY | {"arguments": "*"}]},
    "equal keys": b'{"format": 1, "format": 1, "allowed": []}',
    "too large": b" " * (5 << 20),
}


def written(fingerprint, content):
    return content if isinstance(content, bytes) else json.dumps(content).replace('""', f'"{fingerprint}"').encode()


def assert_allows_nothing(home, bytes_before):
    store = ConsentStore(home)
    assert "allows nothing" in store.warning and store.warning.isprintable()
    chat = Consent(store, "/", Person(NO, ALWAYS))
    assert not chat.decide(READ, {}).is_yes
    # Allowed for this chat, and the file is left for its owner to look at.
    assert chat.decide(READ, {}).is_yes and chat.decide(READ, {}).is_yes
    assert home.read_bytes() == bytes_before


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_allows_nothing(home, kind):
    consent(home, ALWAYS).decide(READ, {})
    fingerprint = json.loads(home.read_text())["allowed"][0]["fingerprint"]
    home.write_bytes(written(fingerprint, {"format": 1, "allowed": [ENTRY]}))
    assert is_allowed(home, READ, {})
    home.write_bytes(written(fingerprint, BROKEN[kind]))
    assert_allows_nothing(home, home.read_bytes())


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX modes")
@pytest.mark.parametrize("of_folder", [False, True])
def test_a_file_that_others_can_write_allows_nothing(home, of_folder):
    consent(home, ALWAYS).decide(READ, {})
    changed = home.parent if of_folder else home
    os.chmod(changed, 0o777)
    assert_allows_nothing(home, home.read_bytes())


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")
def test_a_pipe_in_its_place_does_not_hang(home):
    os.mkfifo(home)
    assert "regular file" in ConsentStore(home).warning


def test_a_folder_that_cannot_be_written_is_told_of(home):
    store = ConsentStore(home.parent / "file" / "allowed-tools.json")
    (home.parent / "file").touch()
    chat = Consent(store, "/", Person(ALWAYS))
    assert chat.decide(READ, {}).is_yes and chat.decide(READ, {}).is_yes
    assert "cannot be written" in store.warning or "allows nothing" in store.warning


def test_a_store_without_a_file_remembers_for_this_chat():
    store = ConsentStore(None)
    assert Consent(store, "/", Person(ALWAYS)).decide(READ, {}).is_yes
    assert Consent(store, "/").decide(READ, {"path": "b"}).is_yes
