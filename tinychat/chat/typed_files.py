"""The files of text, or of images, that an argument names: paths, patterns and folders."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tinychat.conversation.attachments import Attachment
from tinychat.errors import SettingError
from tinychat.files import HAS_NUL
from tinychat.images.image import image_of

# Far more than a context holds.
MAX_BYTES = 16 << 20
_PATTERN = "*?["


class Found(NamedTuple):
    """Files as attachments, and the number of a folder's or pattern's files that are of another kind."""

    attachments: list[Attachment]
    skipped: int


def typed_path(argument: str) -> Path:
    """Return the path that was typed, quoted or escaped as in a shell if there is no such file."""
    path = Path(os.path.expanduser(argument))
    if path.exists():
        return path
    words = _words(argument)
    return Path(os.path.expanduser(words[0])) if len(words) == 1 else path


def text_of(path: Path) -> Attachment:
    """Return a file of text; errors are those of `read_text`."""
    return Attachment(path.name, read_text(path), str(path.resolve()))


def image_in(path: Path) -> Attachment:
    """Return a file of an image; a `SettingError` if it cannot be read."""
    return Attachment(path.name, "", str(path.resolve()), image_of(path))


class FileKind(NamedTuple):
    """A kind of files that can be attached: its name, how one is read, and how many at once."""

    name: str
    read: Callable[[Path], Attachment]
    most: int


TEXT = FileKind("text", text_of, 50)
# A photo takes some 40 MB in memory.
IMAGE = FileKind("image", image_in, 16)


def typed_files(argument: str, kind: FileKind) -> Found:
    """Read the files of an argument: an existing path, or words that are paths, patterns or folders.

    A folder means all files below it without hidden ones; files of folders and patterns that are of another kind are
    skipped.
    """
    words = [argument] if os.path.lexists(os.path.expanduser(argument)) else _words(argument)
    found: dict[Path, Attachment] = {}
    skipped = 0
    for word in words:
        for path, is_named in _paths_of(word):
            if path in found:
                continue
            try:
                attachment = kind.read(path)
            except SettingError:
                if is_named:
                    raise
                skipped += 1
                continue
            if not is_named and attachment.is_empty:
                skipped += 1
                continue
            found[path] = attachment if is_named else replace(attachment, name=str(path))
            if len(found) > kind.most:
                raise SettingError(f"{word} has more than {kind.most} {kind.name} files: name a part of it")
    if not found:
        raise SettingError(f"no {kind.name} files in {argument}: check the path")
    return Found([*found.values()], skipped)


def read_text(path: Path) -> str:
    """Return the text of a file; a SettingError if it is too large or no text."""
    try:
        if not path.is_file():
            raise SettingError(f"{path} is not a file: check the path")
        if path.stat().st_size > MAX_BYTES:
            raise SettingError(f"{path} is larger than {MAX_BYTES >> 20} MiB: attach a part of it")
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
    """Yield the files of a word, and whether it names them one by one."""
    if "://" in word:
        raise SettingError(f"{word} is a URL: download it, and attach the file")
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
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))
