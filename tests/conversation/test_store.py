import json
import os
import stat
from pathlib import Path

import pytest

from tinychat.conversation.history import Change, History
from tinychat.conversation.messages import Message
from tinychat.conversation.session_file import SavedSession, from_json, to_json
from tinychat.conversation.store import SessionStore
from tinychat.errors import SessionError

OLD = Path(__file__).parents[1] / "goldens" / "saved_sessions"
SAVED = SavedSession(
    "tiny",
    "Be kind.",
    [Message("user", "hi 😀"), Message("assistant", "Hel", partial=True)],
    {"seed": None},
    history=History((Change(0), Change(1, (Message("assistant", "Hello"),))), (Change(2, ()),)),
)


@pytest.fixture
def store(tmp_path):
    return SessionStore(tmp_path / "sessions")


def test_what_is_written_is_read(store):
    store.write("first", SAVED)
    assert store.read("first") == SAVED


def test_half_a_surrogate_pair_is_no_reason_to_lose_a_conversation(store):
    store.write(
        "odd", SavedSession(system="caf\udce9", messages=[Message("user", "\ud83d"), Message("assistant", "?")])
    )
    saved = store.read("odd")
    assert (saved.system, saved.messages[0].content, saved.messages[1].content) == ("caf\ufffd", "\ufffd", "?")


def test_the_last_saved_comes_first(store):
    for age, name in enumerate(["new", "old", "older"]):
        store.write(name, SAVED)
        os.utime(store.folder / f"{name}.json", (1_000 - age, 1_000 - age))
    assert store.names() == ["new", "old", "older"]
    passed_over = []
    assert store.latest(passed_over.append) == "new"
    (store.folder / "new.json").write_text("{")
    os.utime(store.folder / "new.json", (1_000, 1_000))
    assert store.latest(passed_over.append) == "old"
    assert passed_over == [f"passed over: {store.folder / 'new.json'} is damaged: it is not valid JSON"]
    assert store.saved_at("old") == 999


def test_an_empty_store(store):
    assert store.names() == []
    with pytest.raises(SessionError, match="no conversation is saved in"):
        store.latest(print)
    with pytest.raises(SessionError, match="there is no conversation 'x': none is saved yet"):
        store.read("x")


def test_a_wrong_name_is_met_with_the_nearest(store):
    store.write("holiday", SAVED)
    with pytest.raises(SessionError, match="did you mean holiday"):
        store.read("holidy")
    with pytest.raises(SessionError, match="saved are holiday"):
        store.read("zzz")


@pytest.mark.parametrize("name", ["", "..", "a/b", "../escape", ".hidden", "a" * 101, "a\nb", "😀"])
def test_names_that_are_no_file_names(store, name):
    with pytest.raises(SessionError, match="cannot name a conversation"):
        store.write(name, SAVED)
    assert not store.folder.exists()


@pytest.mark.skipif(os.name == "nt", reason="permissions are of POSIX")
def test_only_the_owner_may_read(store):
    store.write("mine", SAVED)
    assert stat.S_IMODE((store.folder / "mine.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_an_interrupted_write_leaves_the_old_file(store, monkeypatch):
    store.write("mine", SAVED)

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SessionError, match=r"mine\.json cannot be written: No space left on device"):
        store.write("mine", SavedSession())
    assert store.read("mine") == SAVED
    assert [path.name for path in store.folder.iterdir()] == ["mine.json"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "sessions").touch()
    with pytest.raises(SessionError, match="cannot be written"):
        SessionStore(tmp_path / "sessions").write("mine", SAVED)


def test_new_names_are_free(store):
    store.write("talk", SAVED)
    store.write("talk-2", SAVED)
    assert store.new_name("talk") == "talk-3"
    assert store.new_name("other") == "other"
    store.write(store.new_name(), SAVED)
    assert store.new_name() not in store.names()


@pytest.mark.parametrize("path", sorted(OLD.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_the_first_format_are_read_whole(path):
    old = json.loads(path.read_text())
    assert old["format"] == 1
    session = from_json(path.read_bytes(), path.name)
    assert [(m.role, m.content, m.partial) for m in session.messages] == spoken(old["messages"])
    for changes, key in (
        ((session.history or History()).past, "past"),
        ((session.history or History()).future, "future"),
    ):
        expected = [(change["kept"], spoken(change["tail"])) for change in old.get("history", {key: []})[key]]
        assert [(c.shared, [(m.role, m.content, m.partial) for m in c.tail]) for c in changes] == expected
    text = to_json(session)
    assert json.loads(text)["format"] == 2
    assert from_json(text.encode(), path.name) == session


def spoken(messages):
    return [(message["role"], message["content"], message["partial"]) for message in messages]


def test_a_file_grows_with_what_was_said_and_not_with_its_square():
    def size(count):
        messages = [Message(role, "x" * 50) for _ in range(count) for role in ("user", "assistant")]
        return len(to_json(SavedSession(messages=messages, history=History.of_exchanges(messages))))

    assert size(2000) < 2.1 * size(1000)


def damaged(**changes):
    store = {"format": 1, "model": None, "system": None, "messages": [], "settings": {}}
    return json.dumps(store | changes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not valid JSON"),
        ('{"format": 1', "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "does not hold a conversation"),
        (damaged(format=4), "newer version of tinychat, in format 4; this version reads formats up to 3: upgrade"),
        (damaged(format=10**400), "newer version of tinychat, in format 10000"),
        (damaged(format=None), "its format cannot be read"),
        (damaged(format="2"), "its format cannot be read"),
        (damaged(format=0), "its format cannot be read"),
        (damaged(messages={}), "its messages cannot be read"),
        (damaged(messages=[{"role": "assistant", "content": "x"}]), "its messages cannot be read"),
        (damaged(messages=[{"role": "user", "content": 3}]), "its messages cannot be read"),
        (damaged(messages=[{"role": "user", "content": "x", "partial": "no"}]), "its messages cannot be read"),
        (damaged(system=["x"]), "its system cannot be read"),
        (damaged(settings=[]), "its settings cannot be read"),
        (damaged(settings={"seed": {}}), "seed must be a whole number or none, not {}"),
        (damaged(settings={"temperature": -3}), "must be between 0 and 100"),
        (damaged(history=[]), "its history cannot be read"),
        (damaged(history={"past": [{"kept": 1, "tail": []}], "future": []}), "its history cannot be read"),
        (damaged(history={"past": [{"kept": "x", "tail": []}], "future": []}), "its history cannot be read"),
        (damaged(history={"past": [], "future": [{"kept": -2, "tail": []}]}), "its history cannot be read"),
    ],
)
def test_a_damaged_file_is_explained_in_one_line(store, text, complaint):
    store.folder.mkdir()
    (store.folder / "broken.json").write_text(text)
    with pytest.raises(SessionError) as caught:
        store.read("broken")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_what_is_not_a_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(SessionError, match=r"pipe\.json cannot be read: it is not a regular file"):
        SessionStore(tmp_path).read("pipe")


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tinychat.conversation.store._MAX_BYTES", 1 << 20)
    (tmp_path / "large.json").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(SessionError, match="it is larger than 1 MiB"):
        SessionStore(tmp_path).read("large")
