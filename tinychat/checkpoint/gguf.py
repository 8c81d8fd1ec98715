"""GGUF files recognized, and opened as a checkpoint folder where one is wanted: light, for whoever only asks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENDING = ".gguf"
MAGIC = b"GGUF"


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a GGUF file, or a folder that holds one."""
    try:
        if os.path.isdir(path):
            return any(name.lower().endswith(ENDING) for name in os.listdir(path))
        # Asked first: opening a pipe would wait for its writer.
        return os.path.isfile(path) and (path.suffix.lower() == ENDING or _begins_as_gguf(path))
    except (OSError, ValueError):
        return False


def _begins_as_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


@contextmanager
def folder_of(checkpoint: Path) -> Iterator[Path]:
    """Give the folder of a checkpoint, one made for the time being where it is a GGUF file or a folder of one.

    Raises
    ------
    CheckpointError, UnsupportedModelError
        If that is damaged, or of an architecture or a tokenizer that is not implemented.
    """
    if os.path.isfile(checkpoint / "config.json") or not is_gguf(checkpoint):
        yield checkpoint
        return
    # Imported here: reading takes NumPy, which is a while.
    from tinychat.checkpoint.gguf_checkpoint import gguf_in, unpacked

    with unpacked(checkpoint if checkpoint.is_file() else gguf_in(checkpoint)) as folder:
        yield folder
