"""What tells the model of one run from that of another, wherever its folder lies."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tinychat.errors import StoreError

_WEIGHTS = ".safetensors"
_READ_WHOLE = (".json", ".jinja", ".model")


def converted_folder(model: str | None) -> Path | None:
    """Return the folder of the MODEL of a command; None if there is none yet, or no such model."""
    # Imported here: `tinychat --help` shall not wait for it.
    from tinychat.locate import find, locate

    try:
        if model is None or find(model).kind in ("folder", "stored"):
            return locate(model)
    except StoreError:
        pass
    return None


def model_stamp(folder: Path) -> str:
    """Return a digest of a model folder: its small files, and size and time stamp of its weights."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*")):
        if file.suffix == _WEIGHTS:
            stat = file.stat()
            digest.update(f"\n{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        elif file.suffix in _READ_WHOLE:
            digest.update(f"\n{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()
