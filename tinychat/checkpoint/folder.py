"""The folder of a checkpoint, unpacked from a GGUF file where it is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinychat.checkpoint.gguf import is_gguf


@contextmanager
def folder_of(checkpoint: Path) -> Iterator[Path]:
    """Yield the folder of a checkpoint, temporary for a GGUF file or a folder of one; errors as `unpacked`."""
    if os.path.isfile(checkpoint / "config.json") or not is_gguf(checkpoint):
        yield checkpoint
        return
    # Imported here: reading takes NumPy, which is a while.
    from tinychat.checkpoint.gguf_checkpoint import gguf_in, unpacked

    with unpacked(checkpoint if checkpoint.is_file() else gguf_in(checkpoint)) as folder:
        yield folder
