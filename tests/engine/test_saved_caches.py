"""Where keys and values of saved conversations are, and how many of them stay."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from fake_model import fake_model

from tinychat.chat.workspace import Workspace
from tinychat.conversation.conversation import Chat
from tinychat.conversation.store import SessionStore
from tinychat.engine.saved_caches import SavedCaches


@pytest.fixture
def model():
    made = fake_model(lambda ids: 65)
    made.sequence.ids = [1] * 200
    return made


@pytest.fixture
def caches(tmp_path):
    return SavedCaches(tmp_path, 2500)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def age(path, seconds):
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - seconds))


def test_what_is_kept_is_found_again_and_removed(caches, model, tmp_path):
    assert caches.load("talk", model.sequence) == 0
    caches.save("talk", model.sequence)
    assert names(tmp_path) == ["talk.cache"]
    assert caches.load("talk", model.sequence) == 200
    caches.remove("talk")
    caches.remove("talk")
    assert names(tmp_path) == []


def test_short_conversations_and_those_beyond_the_limit_are_not_kept(caches, model, tmp_path):
    model.sequence.ids = [1] * 100
    caches.save("short", model.sequence)
    model.sequence.ids = [1] * 200
    model.sequence.saved_bytes = 2501
    caches.save("large", model.sequence)
    SavedCaches(tmp_path, 0).save("off", model.sequence)
    assert names(tmp_path) == []


def test_the_one_used_longest_ago_goes_first(caches, model, tmp_path):
    for name in ("a", "b"):
        caches.save(name, model.sequence)
        (tmp_path / f"{name}.cache").write_bytes(bytes(1000))
    age(tmp_path / "a.cache", 20)
    age(tmp_path / "b.cache", 10)
    caches.load("a", model.sequence)
    caches.save("c", model.sequence)
    assert names(tmp_path) == ["a.cache", "c.cache"]
    caches.save("c", model.sequence)
    assert names(tmp_path) == ["a.cache", "c.cache"], "its own old file makes way for the new one"


WRITES_FOR_EVER = """
import sys, time
from pathlib import Path
from tinychat.files import replacing
with replacing(Path(sys.argv[1])) as file:
    file.truncate(2000)
    print(flush=True)
    time.sleep(600)
"""


@contextmanager
def writing(path):
    """Let another process write a file; it is killed in the middle of that."""
    with subprocess.Popen([sys.executable, "-c", WRITES_FOR_EVER, path], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("use", [SavedCaches.save, SavedCaches.load])
def test_what_a_killed_process_has_left_is_removed_with_the_next_use(use, caches, model, tmp_path):
    with writing(tmp_path / "gone.cache"):
        assert len(names(tmp_path)) == 1
    assert len(names(tmp_path)) == 1
    use(caches, "talk", model.sequence)
    assert set(names(tmp_path)) <= {"talk.cache"}


def test_what_a_living_process_writes_counts_and_stays(caches, model, tmp_path):
    model.sequence.saved_bytes = 1000
    with writing(tmp_path / "other.cache"):
        (unfinished,) = names(tmp_path)
        caches.save("talk", model.sequence)
        assert names(tmp_path) == [unfinished], "2000 bytes of 2500 are taken"
        model.sequence.saved_bytes = 500
        caches.save("talk", model.sequence)
        assert names(tmp_path) == [unfinished, "talk.cache"]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(model, tmp_path):
    SavedCaches(tmp_path / "missing", 2500).save("talk", model.sequence)
    assert names(tmp_path) == []


def test_a_conversation_that_goes_on_brings_back_what_was_read(caches, model, tmp_path):
    store = SessionStore(tmp_path)
    first = Workspace(Chat(model), store, caches=caches)
    first.autosave()
    first.chat.request = first.chat.request.__class__(max_tokens=2)
    first.chat.say("hi")
    model.sequence.ids = [1] * 200
    name = first.name
    first.save_cache()
    assert names(tmp_path) == [f"{name}.cache", f"{name}.json"]
    second = Workspace(Chat(model), store, caches=caches)
    second.load(name)
    assert model.sequence.recalled == [f"{name}.cache"]


def test_another_conversation_leaves_its_cache_behind(caches, model, tmp_path):
    workspace = Workspace(Chat(model), SessionStore(tmp_path), caches=caches)
    workspace.save("one")
    workspace.save("two")
    workspace.load("one")
    assert "two.cache" in names(tmp_path)
    workspace.leave_file()
    assert "one.cache" in names(tmp_path)
    workspace.save_cache()
    assert names(tmp_path) == ["one.cache", "one.json", "two.cache", "two.json"]


def test_what_is_kept_goes_where_its_conversation_goes(caches, model, tmp_path):
    workspace = Workspace(Chat(model), SessionStore(tmp_path), caches=caches)
    workspace.save("one")
    workspace.save_cache()
    workspace.rename("two")
    assert names(tmp_path) == ["two.cache", "two.json"]
    workspace.delete("two")
    assert names(tmp_path) == []
