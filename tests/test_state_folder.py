"""Conversations and history are kept where only this user can reach them, else for one run."""

import os
import sys
import tempfile

import pytest

from tinychat import user_folders
from tinychat.chat.workspace import session_store
from tinychat.errors import SessionError
from tinychat.user_folders import trusted_state_folder

posix = pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")


@pytest.fixture(autouse=True)
def afresh(monkeypatch, tmp_path):
    """Forget the folder of another test, and make new ones below this one's."""
    user_folders._folder_of_this_run.cache_clear()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def test_it_is_the_users_folder(tmp_path, capsys):
    assert trusted_state_folder({"TINYCHAT_HOME": str(tmp_path / "home")}) == tmp_path / "home"
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert capsys.readouterr() == ("", "")


@posix
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, capsys, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TINYCHAT_HOME", str(shared))
    folder = trusted_state_folder(os.environ)
    assert folder.parent == tmp_path / "temporary"
    assert session_store().folder == folder / "sessions"
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "said once"
    assert f"{shared} is not used (other users can write to {shared})" in said
    assert str(folder) in said
    assert list(shared.iterdir()) == []


def test_a_user_without_a_home_has_one_for_this_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    folder = trusted_state_folder({})
    assert folder.parent == tmp_path / "temporary"
    assert "the home folder is not known" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_the_folder_of_a_run_goes_if_it_is_empty(tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        (folder / "sessions").mkdir(parents=True)
    (full / "sessions" / "talk.json").write_text("{}")
    for folder in (full, empty):
        user_folders._remove_if_empty(folder)
    assert (full.exists(), empty.exists()) == (True, False)


@posix
def test_no_place_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(SessionError, match=r"the home folder is not known.*there is no temporary folder"):
        trusted_state_folder({})
