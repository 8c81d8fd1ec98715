"""Saved conversations as the commands of the chat list, search, rename and delete them."""

import io
import json
import os
from pathlib import Path

import pytest
from fake_loop import FakeLoop, loop_after

from tinychat.chat.workspace import Workspace
from tinychat.conversation.attachments import Attachment
from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import title_of
from tinychat.errors import SessionError, SettingError


def saved_loop(*turns, name):
    loop = loop_after(*turns)
    loop.run(f"/save {name}")
    return loop


def test_titles_are_the_first_message_without_what_is_attached():
    attached = Attachment("a.py", "print(1)\n\nprint(2)").content
    fenced = Attachment("b.md", "```\ncode\n```").content
    assert title_of([Message("user", f"{attached}\n\n{fenced}\n\nWhat does\nit do?")], 40) == "What does it do?"
    assert title_of([Message("user", "word " * 40)], 12) == "word word..."
    assert title_of([], 40) == ""


def test_sessions_lists_all_or_those_with_a_word():
    saved_loop(("Tell me of ferries", "They float."), name="boats")
    saved_loop(("And of trains", "They roll on. " * 9 + "Some are BLUE, some are not."), name="rails")
    loop = FakeLoop()
    listed = loop.run("/sessions").splitlines()
    assert sorted(line.split()[0] for line in listed) == ["boats", "rails"]
    assert any(line.endswith("2 messages  Tell me of ferries") for line in listed)
    first, passage = loop.run("/sessions blue").splitlines()
    assert first.startswith("rails ") and first.endswith("And of trains")
    assert passage.strip().startswith("...They roll on. Some are BLUE")
    assert loop.run("/sessions ferries").count("\n") == 0
    assert loop.run("/sessions boats").startswith("boats ")
    assert loop.run("/sessions zebra") == "no saved conversation contains 'zebra'"


def test_a_list_reads_the_beginning_of_each_file_only(monkeypatch):
    loop = saved_loop(("Tell me of ferries", "They float."), name="boats")
    store = loop.workspace.store
    session = store.read("boats")
    again = Change(1, (Message("assistant", "They still float."),))
    session.history = History((*session.history.past, *[again] * 20_000))
    store.write("boats", session)
    size = (store.folder / "boats.json").stat().st_size
    read = []

    class Counted(io.FileIO):
        def readinto(self, buffer):
            count = super().readinto(buffer)
            read.append(count)
            return count

    def counting(path, *_arguments, **_settings):
        return io.BufferedReader(Counted(path))

    monkeypatch.setattr("tinychat.files.open", counting, raising=False)
    assert loop.run("/sessions").endswith("2 messages  Tell me of ferries  (this one)")
    assert 0 < sum(read) < 100_000 < size
    assert [len(change.tail) for change in store.read("boats").history.past[-2:]] == [1, 1]
    assert sum(read) > size


@pytest.mark.parametrize("padding", ["", "x" * (2 << 20)])
def test_conversations_that_another_version_saved_are_listed(padding):
    loop = saved_loop(("Tell me of ferries", "They float."), name="boats")
    path = loop.workspace.store.folder / "boats.json"
    value = json.loads(path.read_text())
    del value["about"]
    path.write_text(json.dumps(value | {"other": padding}))
    expected = "saved by an older version" if padding else "2 messages  Tell me of ferries"
    assert loop.run("/sessions").endswith(f"{expected}  (this one)")
    assert "Tell me of ferries" in loop.run("/sessions float")


@pytest.mark.parametrize("about", ["[]", "{", '{"messages": "2", "title": "x"}', "[" * 3000, '{"messages": 2}'])
def test_a_damaged_beginning_is_not_believed(about):
    loop = saved_loop(("Tell me of ferries", "They float."), name="boats")
    path = loop.workspace.store.folder / "boats.json"
    begin, end = path.read_text().split('"about": ')
    path.write_text(f'{begin}"about": {about}{end[end.index("}") + 1 :]}')
    assert loop.run("/sessions").endswith(("2 messages  Tell me of ferries  (this one)", "damaged"))


def test_a_conversation_that_was_loaded_has_no_last_reply_of_another():
    loop = loop_after(("one", "1"))
    loop.run("/save first")
    assert "last reply" in loop.run("/stats")
    loop.run("/load first")
    assert "last reply" not in loop.run("/stats")
    loop.chat.say("two")
    assert "last reply" in loop.run("/stats")
    loop.run("/clear")
    assert loop.run("/stats") == "context: 0 of 256 tokens in use, 256 left; messages: 0"


def test_rename_and_delete():
    loop = saved_loop(("hi", "Hello"), name="first")
    saved_loop(("ho", "Hello"), name="other")
    assert loop.run("/rename second") == "renamed first to second"
    assert (loop.workspace.name, loop.workspace.store.exists("first")) == ("second", False)
    # Later saves go into the renamed file, not into a copy.
    assert loop.run("/save") == "saved as second"
    assert loop.run("/rename other third") == "renamed other to third"
    for line, message in (
        ("/rename third", "there is a conversation third already"),
        ("/rename a b c", "too many names"),
        ("/rename nothing more", "there is no conversation 'nothing'"),
        ("/delete nothing", "there is no conversation 'nothing'"),
        ("/rename ../x", "cannot name a conversation"),
    ):
        with pytest.raises((SessionError, SettingError), match=message):
            loop.run(line)
    assert loop.run("/delete third") == "deleted third"
    assert loop.spoken == ["hi", "Hello"]
    assert loop.run("/delete second") == "deleted second; a new conversation begins"
    assert (loop.spoken, loop.workspace.store.names()) == ([], [])


def test_rename_gives_the_first_name_too():
    loop = loop_after(("hi", "Hello"))
    assert loop.run("/rename talk") == "saved as talk"


def test_a_private_chat_writes_nothing():
    loop = loop_after(("hi", "Hello"))
    loop.workspace = Workspace(loop.chat, private=True)
    assert "session         private, nothing is saved" in loop.run("/show").splitlines()
    loop.workspace.autosave()
    loop.chat.say("more")
    for line in ("/save", "/save x", "/fork", "/rename x", "/delete x"):
        with pytest.raises(SessionError, match="this chat is private"):
            loop.run(line)
    assert list(Path(os.environ["TINYCHAT_HOME"]).rglob("*")) == []
