"""GGUF files recognized by their names and first bytes."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

ENDING = ".gguf"
MAGIC = b"GGUF"
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
    # Beside a language model that looks at images lies what turns them into its inputs.
    return [path for path in first if not path.name.startswith("mmproj")]


def parts_of(file: Path) -> list[Path]:
    """Return the files that are one model with `file`, by their names: itself alone if it is whole."""
    part = PART.fullmatch(file.stem)
    if part is None:
        return [file]
    return [file.with_name(f"{part[1]}-{i:05d}-of-{part[3]}{file.suffix}") for i in range(1, int(part[3]) + 1)]
