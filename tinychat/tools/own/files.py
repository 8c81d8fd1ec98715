"""Tools that read the files of one folder: read_file, list_files, search_files."""

from __future__ import annotations

import fnmatch
import os
import stat
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tinychat.errors import ToolError
from tinychat.limited_process import LimitedProcess, LimitError, LimitExceeded
from tinychat.tools.definitions import Tool
from tinychat.tools.own.matching_lines import lines_with
from tinychat.tools.own.root import Root
from tinychat.tools.runnable import LONGEST_RESULT, RunnableTool, ToolResult

_MOST_ENTRIES = 200
_MOST_MATCHES = 100
# Room for the note behind the lines.
_MOST_CHARACTERS = LONGEST_RESULT - 1000
_INCOMPLETE = "[the folder is too large: this is a part of it; name a folder in it]"

PATH = {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path in the working folder"}
_FOLDER = {"type": "string", "maxLength": 4096, "description": "Folder to look in; the working folder if left out"}
_PATTERN = {"type": "string", "maxLength": 1000, "description": "Names or paths with * and ?, as in src/*.md"}
_LINE = {"type": "integer", "minimum": 1}


def schema_of(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


class ReadFile(RunnableTool):
    """Reads the lines of a text file."""

    writes = False
    definition = Tool(
        "read_file",
        "Read a text file of the working folder, or some of its lines.",
        schema_of(("path",), path=PATH, start_line=_LINE, end_line=_LINE),
    )

    def __init__(self, root: Root) -> None:
        self._root = root

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Return the lines, and where to read on if there are more than a result holds."""
        lines = self._root.read(self._root.resolve(arguments["path"])).split("\n")
        if lines[-1] == "":
            lines.pop()
        start, end = arguments.get("start_line", 1), min(arguments.get("end_line", len(lines)), len(lines))
        if not lines:
            return ToolResult("[the file is empty]")
        if start > end:
            raise ToolError(f"there are no lines {start} to {end}: the file has {len(lines)}")
        size, last = 0, start - 1
        while last < end and (size + len(lines[last]) < _MOST_CHARACTERS or last < start):
            size += len(lines[last]) + 1
            last += 1
        text = "\n".join(lines[start - 1 : last])
        if last < end:
            text += f"\n[lines {start} to {last} of {len(lines)}: read on with start_line {last + 1}]"
        return ToolResult(text)


class ListFiles(RunnableTool):
    """Lists the files of a folder."""

    writes = False
    definition = Tool(
        "list_files",
        "List files and folders with size and time of the last change, and the time now.",
        schema_of(
            (),
            path=_FOLDER,
            newest_first={"type": "boolean", "description": "Sort by time of change"},
            recursive={"type": "boolean", "description": "Also list what is in folders"},
            pattern=_PATTERN,
        ),
    )

    def __init__(self, root: Root) -> None:
        self._root = root

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Return a line for each entry."""
        folder = _folder(self._root, arguments)
        note, found = "", []
        try:
            for path, status in self._root.walk(folder, stop, arguments.get("recursive", False)):
                if _is_like(self._root, path, arguments):
                    found.append((path, status))
        except TimeoutError:
            note = f"\n{_INCOMPLETE}"
        if arguments.get("newest_first", False):
            found.sort(key=lambda entry: entry[1].st_mtime, reverse=True)
        if len(found) > _MOST_ENTRIES:
            note = f"\n[{len(found) - _MOST_ENTRIES} more are not listed: name a folder or a pattern]{note}"
        now = datetime.now().astimezone()
        head = f"{self._root.shown(folder)}: {len(found)} entries; the time now is {now:%A, %Y-%m-%d %H:%M}"
        lines = (line_of(self._root.shown(path), status) for path, status in found[:_MOST_ENTRIES])
        return ToolResult("\n".join([head, *lines]) + note)


class SearchFiles(RunnableTool):
    """Finds lines in files."""

    writes = False
    definition = Tool(
        "search_files",
        "Find lines in the text files of the working folder.",
        schema_of(
            ("text",),
            text={"type": "string", "minLength": 1, "maxLength": 4000, "description": "Text to find"},
            is_regex={"type": "boolean", "description": "Whether the text is a regular expression of Python"},
            ignore_case={"type": "boolean"},
            path=_FOLDER,
            pattern=_PATTERN,
        ),
    )

    def __init__(self, root: Root) -> None:
        self._root = root
        # A regular expression may take any time: a process with limits runs it.
        self._expressions = LimitedProcess("tinychat.tools.own.matching_lines")

    def run(self, arguments: dict[str, Any], stop: threading.Event) -> ToolResult:
        """Return "path:line: text" for each line that matches."""
        lines: list[str] = []
        note = ""
        try:
            for name, text in self._texts(arguments, stop):
                most = _MOST_MATCHES + 1 - len(lines)
                lines += (f"{name}:{number}: {line}" for number, line in self._matches(text, arguments, most))
                if len(lines) > _MOST_MATCHES:
                    note = f"\n[only the first {_MOST_MATCHES} lines are shown: name a folder or a pattern]"
                    break
        except TimeoutError:
            note = f"\n{_INCOMPLETE}"
        return ToolResult("\n".join(lines[:_MOST_MATCHES] or ["no line has it"]) + note)

    def _texts(self, arguments: dict[str, Any], stop: threading.Event) -> Iterator[tuple[str, str]]:
        start = self._root.resolve(arguments.get("path", "."))
        if start.is_file():
            yield self._root.shown(start), self._root.read(start)
            return
        for path, status in self._root.walk(_folder(self._root, arguments), stop):
            if stat.S_ISREG(status.st_mode) and _is_like(self._root, path, arguments):
                try:
                    text = self._root.read(path)
                except ToolError:
                    continue
                yield self._root.shown(path), text

    def _matches(self, text: str, arguments: dict[str, Any], most: int) -> list[tuple[int, str]]:
        words, ignore_case = arguments["text"], arguments.get("ignore_case", False)
        if not arguments.get("is_regex", False):
            return lines_with(words, text, most, ignore_case)
        request = {"pattern": words, "text": text, "most": most, "ignore_case": ignore_case}
        try:
            return [(number, line) for number, line in self._expressions.call(request)]
        except LimitExceeded:
            raise ToolError("the regular expression takes too long: make it simpler") from None
        except LimitError as error:
            raise ToolError(f"the regular expression cannot be used: {error}") from None


def _folder(root: Root, arguments: dict[str, Any]) -> Path:
    folder = root.resolve(arguments.get("path", "."))
    if not folder.is_dir():
        raise ToolError(f"there is no folder {root.shown(folder)}")
    return folder


def _is_like(root: Root, path: Path, arguments: dict[str, Any]) -> bool:
    """Return whether the name or the path of an entry is like the pattern."""
    pattern = arguments.get("pattern", "*").replace("**/", "*")
    names = (path.name, path.relative_to(root.folder).as_posix())
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def line_of(name: str, status: os.stat_result) -> str:
    """Return the line of an entry in a list: time of change, size or kind, name."""
    try:
        changed = f"{datetime.fromtimestamp(status.st_mtime).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        changed = "at no known time"
    kinds = {stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFREG: f"{status.st_size:,} bytes"}
    return f"{changed}  {kinds.get(stat.S_IFMT(status.st_mode), 'device')}  {name}"
