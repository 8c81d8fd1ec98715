"""The groups of our own tools by the names of `--tools`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinychat.tools.runnable import RunnableTool


def _readers(folder: Path) -> Sequence[RunnableTool]:
    raise NotImplementedError


GROUPS: dict[str, Callable[[Path], Sequence[RunnableTool]]] = {"files": _readers}
