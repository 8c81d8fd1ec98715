"""Where a user's folders are, and that only their own are trusted."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tinychat.user_folders import cache_folder, data_folder, expanded, fresh_folder, private_folder, state_folder

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="other systems have no modes")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give folders away")
SOMEBODY = 12345


def mode_of(folder):
    return folder.stat().st_mode & 0o7777


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep user data elsewhere")
def test_where_they_are(home):
    assert cache_folder({}) == home / ".cache/tinychat"
    assert state_folder({}) == home / ".local/state/tinychat"
    assert data_folder({}) == home / ".local/share/tinychat"
    given = {"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_DATA_HOME": "/d"}
    found = [str(find(given)) for find in (cache_folder, state_folder, data_folder)]
    assert found == ["/c/tinychat", "/s/tinychat", "/d/tinychat"]
    own = given | {"TINYCHAT_CACHE": "~/own", "TINYCHAT_HOME": "/own"}
    assert [cache_folder(own), state_folder(own), data_folder(own)] == [home / "own", Path("/own"), Path("/own")]


def test_relative_paths_are_those_of_this_folder_or_ignored(home, monkeypatch):
    monkeypatch.chdir(home)
    assert cache_folder({"TINYCHAT_CACHE": "own"}) == home / "own"
    assert cache_folder({"XDG_CACHE_HOME": "own"}) == home / ".cache/tinychat"


@pytest.mark.parametrize("find", [cache_folder, state_folder, data_folder])
def test_no_path_is_made_of_an_unknown_home(find, monkeypatch):
    for environment in ({"TINYCHAT_CACHE": "~no-such-user/x", "TINYCHAT_HOME": "~no-such-user/x"}, {}):
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
        with pytest.raises(OSError, match="the home folder is not known"):
            find(environment)


def test_a_home_that_is_no_whole_path_is_none(monkeypatch):
    monkeypatch.setenv("HOME", "here")
    with pytest.raises(OSError, match="the home folder is not known"):
        expanded("~/x")
    assert expanded("x/~") == Path("x/~")


@posix
def test_a_new_folder_is_this_users_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = private_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [mode_of(folder), mode_of(folder.parent)] == [0o700, 0o700]


@posix
def test_what_others_can_read_is_closed(tmp_path):
    tmp_path.joinpath("old").mkdir(mode=0o755)
    assert mode_of(private_folder(tmp_path / "old")) == 0o700


@posix
@pytest.mark.parametrize("place", ["own", "own/below"])
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o770])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path, mode, place):
    (tmp_path / "own" / "below").mkdir(parents=True)
    # No user's own group: others may be in it.
    os.chown(tmp_path / place, -1, SOMEBODY if os.geteuid() == 0 else -1)
    (tmp_path / place).chmod(mode)
    if mode == 0o770 and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another group")
    with pytest.raises(PermissionError, match=rf"other users can write to .*{place}"):
        private_folder(tmp_path / "own" / "below")
    assert mode_of(tmp_path / place) == mode


@posix
def test_a_sticky_folder_may_be_above_but_not_the_last(tmp_path):
    tmp_path.joinpath("shared").mkdir()
    tmp_path.joinpath("shared").chmod(0o1777)
    assert mode_of(private_folder(tmp_path / "shared" / "own")) == 0o700
    with pytest.raises(PermissionError, match="other users can write"):
        private_folder(tmp_path / "shared")


@as_root
@pytest.mark.parametrize("place", ["own", "own/below"])
def test_a_folder_of_another_user_is_not_used(tmp_path, place):
    (tmp_path / "own" / "below").mkdir(parents=True)
    os.chown(tmp_path / place, SOMEBODY, SOMEBODY)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "own" / "below")


@as_root
def test_a_link_does_not_hide_whose_folder_it_is(tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", SOMEBODY, SOMEBODY)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(PermissionError, match="belongs to another user"):
        private_folder(tmp_path / "link" / "new")


@posix
def test_a_fresh_folder_is_new_and_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = [fresh_folder("x-"), fresh_folder("x-")]
    assert folders[0] != folders[1]
    assert {mode_of(folder) for folder in folders} == {0o700}
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write"):
        fresh_folder("x-")


START = "import os, tinychat.kernels; print(os.environ['NUMBA_CACHE_DIR'])"


@posix
def test_planted_kernels_are_not_run(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    environment = os.environ | {"TINYCHAT_CACHE": str(cache)}
    result = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    used = Path(result.stdout.strip())
    assert cache not in used.parents
    assert f"other users can write to {cache}" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not used.exists(), "gone with the process"
    assert list(cache.iterdir()) == []


WITHOUT_HOME = "import os; os.path.expanduser = lambda path: path; import tinychat.kernels"


def test_nothing_is_written_into_the_working_folder_without_a_home(tmp_path):
    """For an unknown user without HOME Python leaves "~" as it is."""
    names = ("HOME", "TINYCHAT_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", WITHOUT_HOME]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120, check=True
    )
    assert "the home folder is not known" in result.stderr
    assert list(tmp_path.iterdir()) == []
