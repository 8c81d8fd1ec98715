"""GGUF files recognized by their names and first bytes."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tinychat.files import open_regular

ENDING = ".gguf"
MAGIC = b"GGUF"
MMPROJ, CLIP = "mmproj", "clip"
# Keys of a ``config.json``: the mmproj file that a model sees by, and why one is left out.
SEES_BY, LEFT_OUT = "mmproj", "mmproj_left_out"
# Behind the beginning and two counts, writers have the architecture first: the key, that of a text, and the text.
_FIRST_KEY, _KEY = 24, b"general.architecture"
_OF_CLIP = b"".join((len(_KEY).to_bytes(8, "little"), _KEY, b"\x08\0\0\0\4\0\0\0\0\0\0\0", CLIP.encode()))
# How the parts of a split file are named.
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})")


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a GGUF file, or a folder that holds one."""
    try:
        if os.path.isdir(path):
            return any(name.lower().endswith(ENDING) for name in os.listdir(path))
        # Asked first: opening a pipe would wait for its writer.
        if not os.path.isfile(path) or path.suffix.lower() == ENDING:
            return os.path.isfile(path)
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def first_parts(files: Iterable[Path]) -> list[Path]:
    """Return those of some GGUF files that are a language model, or the first part of a split one."""
    first = [path for path in files if (part := PART.fullmatch(path.stem)) is None or int(part[2]) == 1]
    return [path for path in first if not is_mmproj(path)]


def is_mmproj(file: Path) -> bool:
    """Return whether a GGUF file has what turns images or sound into inputs of another file's language model."""
    if MMPROJ in file.name.lower():
        return True
    try:
        with open_regular(file) as stream:
            beginning = stream.read(_FIRST_KEY + len(_OF_CLIP))
    except OSError:
        return False
    return beginning.startswith(MAGIC) and beginning[_FIRST_KEY:] == _OF_CLIP


def mmproj_beside(model: Path) -> list[Path]:
    """Return the files beside a language model's GGUF file that have such a part, in order."""
    try:
        names = sorted(
            name for name in os.listdir(model.parent) if name.lower().endswith(ENDING) and name != model.name
        )
    except OSError:
        return []
    return [file for name in names if is_mmproj(file := model.with_name(name)) and os.path.isfile(file)]


def parts_of(file: Path) -> list[Path]:
    """Return the files that are one model with `file`, by their names: itself alone if it is whole."""
    part = PART.fullmatch(file.stem)
    if part is None:
        return [file]
    return [file.with_name(f"{part[1]}-{i:05d}-of-{part[3]}{file.suffix}") for i in range(1, int(part[3]) + 1)]
