"""The folders of one user: compiled kernels, conversations, models.

Compiled kernels are run as they are found, and conversations are private. So both are only in folders where nobody but
this user and root can change anything: of mode 0700, below folders of which the same is true.
"""

from __future__ import annotations

import atexit
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from tinychat.errors import SessionError

_GROUP_OR_OTHERS = 0o077
_GROUP_WRITES, _OTHERS_WRITE = 0o020, 0o002


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of compiled kernels: $TINYCHAT_CACHE, else the user's cache; `OSError` without a home."""
    user_cache = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return _user_folder(environment, "TINYCHAT_CACHE", ("XDG_CACHE_HOME", "LOCALAPPDATA"), user_cache)


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of history and conversations: $TINYCHAT_HOME, else the user's; `OSError` without a home."""
    return _user_folder(environment, "TINYCHAT_HOME", ("XDG_STATE_HOME", "LOCALAPPDATA"), "~/.local/state")


def data_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder below which models are stored: $TINYCHAT_HOME, else the user's; `OSError` without a home."""
    user_data = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/share"
    return _user_folder(environment, "TINYCHAT_HOME", ("XDG_DATA_HOME", "LOCALAPPDATA"), user_data)


def config_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the configuration file: $TINYCHAT_HOME, else the user's; `OSError` without a home."""
    user_configuration = "~/Library/Application Support" if sys.platform == "darwin" else "~/.config"
    return _user_folder(environment, "TINYCHAT_HOME", ("XDG_CONFIG_HOME", "APPDATA"), user_configuration)


def _user_folder(environment: Mapping[str, str], own: str, shared: tuple[str, ...], default: str) -> Path:
    """Return the folder of our `own` variable, else "tinychat" in that of a `shared` variable, or of the default."""
    if base := environment.get(own):
        return Path(os.path.abspath(expanded(base)))
    for variable in shared:
        # The XDG specification has a relative path ignored.
        if (base := environment.get(variable)) and (folder := expanded(base)).is_absolute():
            return Path(os.path.abspath(folder), "tinychat")
    return expanded(default) / "tinychat"


def expanded(path: str) -> Path:
    """Return a path with the home folder for "~" or "~user"; `OSError` if that is unknown."""
    whole = os.path.expanduser(path)
    if path.startswith("~") and not os.path.isabs(whole):
        raise FileNotFoundError(errno.ENOENT, "the home folder is not known", path)
    return Path(whole)


def make_folder(folder: Path) -> Path:
    """Make a folder and those above it that are missing, all with mode 0700; return its real path."""
    real = Path(os.path.realpath(folder))
    for part in (*reversed(real.parents), real):
        _make(part)
    return real


def trusted_folder(folder: Path) -> Path:
    """Return the real path of a folder that only this user and root can change, made if it is missing.

    `OSError` if others could change its contents: `strerror` names the part of the path.
    """
    real = Path(os.path.realpath(folder))
    for part in (*reversed(real.parents), real):
        _make(part)
        _check_ownership(part, is_last=part == real)
    return real


def private_folder(folder: Path) -> Path:
    """Return the real path of a `trusted_folder` that nobody else can read either: its mode becomes 0700."""
    real = trusted_folder(folder)
    if hasattr(os, "geteuid") and real.stat().st_mode & _GROUP_OR_OTHERS and real.stat().st_uid == os.geteuid():
        real.chmod(0o700)
    return real


def fresh_folder(prefix: str) -> Path:
    """Return a new temporary folder that is this user's alone."""
    return private_folder(Path(tempfile.mkdtemp(prefix=prefix)))


def _make(folder: Path) -> None:
    # Never `parents=True`: that would make folders that are as open as the umask allows.
    if not os.path.lexists(folder):
        folder.mkdir(mode=0o700, exist_ok=True)


def _check_ownership(folder: Path, is_last: bool) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"{folder} belongs to another user", str(folder))
    # In a sticky folder, as /tmp is, others may add but not replace.
    if status.st_mode & stat.S_ISVTX and not is_last:
        return
    if status.st_mode & _OTHERS_WRITE or (status.st_mode & _GROUP_WRITES and not _is_group_of_one(status.st_gid)):
        raise PermissionError(errno.EPERM, f"other users can write to {folder}", str(folder))


def _is_group_of_one(group_id: int) -> bool:
    """Return whether a group is the one that many systems make for each user, with nobody else in it."""
    if sys.platform == "win32":
        return False
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return user.pw_gid == group_id and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def trusted_state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of history and conversations, a temporary one (and a line on stderr) if others can change it.

    `SessionError` if there is no temporary folder either.
    """
    folder = Path("the state folder")
    try:
        folder = state_folder(environment)
        return trusted_folder(folder)
    except (PermissionError, FileNotFoundError) as error:
        return _folder_of_this_run(f"{folder} is not used ({error.strerror})")
    except OSError:
        # A file of its name, or a full disk: writing there will report it, and reading finds nothing.
        return folder


@cache
def _folder_of_this_run(reason: str) -> Path:
    """Make one folder for the whole run; it stays if there is something in it."""
    try:
        folder = fresh_folder("tinychat-")
    except OSError as error:
        raise SessionError(f"{reason}, and there is no temporary folder: {error.strerror or error}") from None
    atexit.register(_remove_if_empty, folder)
    sys.stderr.write(f"tinychat: {reason}: history and conversations are in {folder} this time\n")
    return folder


def _remove_if_empty(folder: Path) -> None:
    for empty in (folder / "sessions", folder):
        with suppress(OSError):
            os.rmdir(empty)
