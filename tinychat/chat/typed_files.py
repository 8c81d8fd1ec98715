"""The files that a person names in one line: paths, patterns and folders."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tinychat.conversation.attachments import Attachment
from tinychat.errors import SettingError
from tinychat.files import HAS_NUL

# Far beyond what a context holds, and read in an instant.
MAX_BYTES = 16 << 20
MOST_FILES = 50
_PATTERN = "*?["


class Found(NamedTuple):
    """Files by the names that they go by, and how many of a folder's or pattern's files were left out as not text."""

    attachments: list[Attachment]
    left_out: int


def typed_path(argument: str) -> Path:
    """Return the path that a person has typed as it is, or as a shell or a file manager writes it: quoted, escaped."""
    path = Path(os.path.expanduser(argument))
    if path.exists():
        return path
    words = _words(argument)
    return Path(os.path.expanduser(words[0])) if len(words) == 1 else path


def typed_files(argument: str) -> Found:
    """Read the files of a line: one path as it stands, or several words, each a path, a pattern or a folder.

    Of a folder all files are meant, also those of folders in it, but none whose name begins with a dot.

    Raises
    ------
    SettingError
        If a file is missing, too large or no text, nothing matches a pattern, or there are more than `MOST_FILES`.
    """
    words = [argument] if os.path.lexists(os.path.expanduser(argument)) else _words(argument)
    found: dict[Path, Attachment] = {}
    left_out = 0
    for word in words:
        for path, is_named in _paths_of(word):
            if path in found:
                continue
            try:
                text = read_text(path)
            except SettingError:
                if is_named:
                    raise
                left_out += 1
                continue
            if not is_named and not text.strip():
                left_out += 1
                continue
            found[path] = Attachment(path.name if is_named else str(path), text, str(path.resolve()))
            if len(found) > MOST_FILES:
                raise SettingError(f"{word} has more than {MOST_FILES} files of text: name a part of it")
    if not found:
        raise SettingError(f"{argument} holds no text: name files of text")
    return Found([*found.values()], left_out)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    SettingError
        If it is not a file, too large, or no text in UTF-8.
    """
    try:
        if not path.is_file():
            raise SettingError(f"{path} is not a file: check the path")
        if path.stat().st_size > MAX_BYTES:
            raise SettingError(f"{path} is larger than {MAX_BYTES >> 20} MiB: send a part of it")
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not UTF-8 text: convert it first") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if "\0" in text:
        raise SettingError(f"{path} {HAS_NUL}")
    return text


def _words(argument: str) -> list[str]:
    try:
        return shlex.split(argument) or [argument]
    except ValueError:
        return [argument]


def _paths_of(word: str) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a word stands for, and whether it names them one by one."""
    if "://" in word:
        raise SettingError(f"{word} is an address: download it, and attach the file")
    path = Path(os.path.expanduser(word))
    if path.is_dir():
        yield from ((file, False) for file in _files_in(path))
    elif any(letter in word for letter in _PATTERN) and not path.exists():
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise SettingError(f"no file matches {word}: check the pattern")
        yield from ((Path(match), False) for match in matches if os.path.isfile(match))
    else:
        yield path, True


def _files_in(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))
