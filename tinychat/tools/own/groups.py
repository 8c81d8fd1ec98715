"""The groups in which our own tools are asked for: ``--tools files,edits``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tinychat.tools.own.command import RunCommand, RunShellLine
from tinychat.tools.own.edits import EditFile, WriteFile
from tinychat.tools.own.files import ListFiles, ReadFile, SearchFiles
from tinychat.tools.own.root import Root
from tinychat.tools.runnable import RunnableTool

GROUPS: dict[str, Callable[[Path], Sequence[RunnableTool]]] = {
    "files": lambda folder: _rooted(folder, ReadFile, ListFiles, SearchFiles),
    "edits": lambda folder: _rooted(folder, WriteFile, EditFile),
    "shell": lambda folder: _rooted(folder, RunCommand),
    "shell-syntax": lambda folder: _rooted(folder, RunShellLine),
}
"""The groups by name: each makes its tools for a folder that they do not leave."""


def _rooted(folder: Path, *tools: Callable[[Root], RunnableTool]) -> list[RunnableTool]:
    root = Root(folder)
    return [make(root) for make in tools]
