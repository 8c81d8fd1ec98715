"""Tools that write files of one folder: write_file, edit_file. Each shows its diff before."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Any

from tinychat.errors import ToolError
from tinychat.files import replacing
from tinychat.tools.definitions import Tool
from tinychat.tools.own.diff import diff_of
from tinychat.tools.own.files import PATH, schema_of
from tinychat.tools.own.root import MAX_FILE_BYTES, Root
from tinychat.tools.runnable import RunnableTool, ToolResult


class _Writer(RunnableTool):
    """A tool that replaces the text of one file."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._shown: tuple[dict[str, Any], str | None] | None = None

    @abstractmethod
    def _edited(self, before: str | None, arguments: dict[str, Any]) -> str:
        """Return the new text of a file with the text `before`, None of one that is to be made."""

    def preview(self, arguments: dict[str, Any]) -> str:
        """Return the change as a unified diff."""
        path, before, after = self._plan(arguments)
        self._shown = (arguments, before)
        return diff_of(self._root.shown(path), before, after)

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Replace the file in one step; `ToolError` if it is no longer the one whose diff was shown."""
        path, before, after = self._plan(arguments)
        if self._shown is not None and self._shown[0] == arguments and self._shown[1] != before:
            raise ToolError(f"{self._root.shown(path)} has changed since the diff was shown: read it again")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != Path(os.path.realpath(path.parent)):
            raise ToolError(f"the folder of {self._root.shown(path)} has become a link: nothing is written")
        with replacing(path, is_private=False) as file:
            file.write(after.encode())
        self._shown = None
        verb = "made" if before is None else "changed"
        return ToolResult(f"{verb} {self._root.shown(path)}: it has {after.count(chr(10))} lines now")

    def _plan(self, arguments: dict[str, Any]) -> tuple[Path, str | None, str]:
        """Return the path, and its text before and after."""
        path = self._root.resolve(arguments["path"])
        before = self._root.read(path) if path.exists() else None
        try:
            after = self._edited(before, arguments)
            size = len(after.encode())
        except UnicodeEncodeError:
            raise ToolError("the text has half a character in it: nothing is written") from None
        if size > MAX_FILE_BYTES:
            raise ToolError(f"the text is longer than {MAX_FILE_BYTES >> 20} MiB: nothing is written")
        if before == after:
            raise ToolError(f"{self._root.shown(path)} already has this text")
        return path, before, after


class WriteFile(_Writer):
    """Writes a whole file."""

    definition = Tool(
        "write_file",
        "Write a text file of the working folder: a new one, or all of an old one. To change a part, use edit_file.",
        schema_of(("path", "content"), path=PATH, content={"type": "string"}),
    )

    def _edited(self, before: str | None, arguments: dict[str, Any]) -> str:
        content: str = arguments["content"]
        return content


class EditFile(_Writer):
    """Replaces one passage of a file."""

    definition = Tool(
        "edit_file",
        "Replace a passage of a text file. The old text must occur exactly once: give enough lines around it.",
        schema_of(
            ("path", "old_text", "new_text"),
            path=PATH,
            old_text={"type": "string", "minLength": 1},
            new_text={"type": "string"},
        ),
    )

    def _edited(self, before: str | None, arguments: dict[str, Any]) -> str:
        if before is None:
            raise ToolError("there is no such file: write_file makes one")
        old, new = arguments["old_text"], arguments["new_text"]
        if "\r\n" in before and "\r" not in old:
            # Models write lines as other systems end them.
            old, new = (text.replace("\r\n", "\n").replace("\n", "\r\n") for text in (old, new))
        count = before.count(old)
        if count != 1:
            advice = "read the file again" if count == 0 else "give more of the lines around it"
            raise ToolError(f"old_text must occur once, and occurs {count} times: {advice}")
        return before.replace(old, new)
