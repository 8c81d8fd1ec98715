"""GGUF files: not read, but recognized, so that the refusal can say what to give instead."""

import os
from pathlib import Path

ADVICE = "GGUF files are not supported: give the Hugging Face checkpoint that it was made from, a folder or a repo id"
_ENDING, _MAGIC = ".gguf", b"GGUF"


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a GGUF file, or a folder that holds one."""
    try:
        if os.path.isdir(path):
            return any(name.lower().endswith(_ENDING) for name in os.listdir(path))
        # Asked first: opening a pipe would wait for its writer.
        return os.path.isfile(path) and (path.suffix.lower() == _ENDING or _begins_as_gguf(path))
    except (OSError, ValueError):
        return False


def _begins_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
