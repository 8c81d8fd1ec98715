"""Where the chat keeps what it remembers between two runs: in a folder that is the user's alone."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from tinychat.errors import SessionError
from tinychat.user_folders import fresh_folder, state_folder, trusted_folder


def trusted_state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of history and conversations; a temporary one, and a line on stderr, where others reach it.

    Raises
    ------
    SessionError
        If there is no place for a temporary one either.
    """
    folder = Path("the state folder")
    try:
        folder = state_folder(environment)
        return trusted_folder(folder)
    except (PermissionError, FileNotFoundError) as error:
        return _folder_of_this_run(f"{folder} is not used ({error.strerror})")
    except OSError:
        # A file in its place, a disk that is full: writing there tells, and reading finds nothing.
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
