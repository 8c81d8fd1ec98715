"""Servers of this user on this machine: each has a small file with its address while it runs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tinychat.user_folders import state_folder, trusted_folder

_LARGEST = 64 << 10
# A port of this machine where nobody listens refuses at once.
_SECONDS = 0.2


@contextmanager
def announced(url: str, models: Sequence[str]) -> Iterator[None]:
    """Let other programs of this user know of a server; without a folder for it nobody is told."""
    path: Path | None = None
    with suppress(OSError):
        path = _folder() / f"{os.getpid()}.json"
        path.write_text(json.dumps({"url": url, "models": [*models], "pid": os.getpid()}), encoding="utf-8")
        path.chmod(0o600)
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink()


def server_of(model: str) -> str | None:
    """Return the address of a running server with this model; files of servers that have ended are removed."""
    with suppress(OSError):
        for path in sorted(_folder().glob("*.json")):
            url, models = _read(path)
            if model not in models:
                continue
            if _listens(url):
                return url
            path.unlink(missing_ok=True)
    return None


def _folder() -> Path:
    return trusted_folder(state_folder(os.environ) / "servers")


def _read(path: Path) -> tuple[str, list[object]]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST))
        url, models = found["url"], found["models"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return "", []
    is_sound = isinstance(url, str) and url.isprintable() and isinstance(models, list)
    return (url, models) if is_sound else ("", [])


def _listens(url: str) -> bool:
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), _SECONDS):
            return True
    except (OSError, ValueError):
        return False
