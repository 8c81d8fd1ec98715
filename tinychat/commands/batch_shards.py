"""The shards of a batch: which rows one machine answers, and one file of the results of all."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click

from tinychat.commands.batch_results import MAX_LINE_BYTES
from tinychat.errors import SettingError
from tinychat.files import replacing


class Shard(click.ParamType):  # type: ignore[type-arg]
    """The type of --shard: I/N as a pair of numbers, I from 0."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
        if found is None or int(found[1]) >= int(found[2]):
            self.fail(f"{value!r} is not I/N with I from 0 to N - 1, as in 0/4", param, ctx)
        return int(found[1]), int(found[2])


def shard_of(name: str | int, count: int) -> int:
    """Return the shard of the row with this id: the same in every file, at every place, whatever the other rows are."""
    return int.from_bytes(hashlib.sha256(str(name).encode("utf-8", "surrogatepass")).digest()[:8]) % count


class _Part:
    """The results of one file, read one after the other."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file, self._number = path, file, 0
        self.line, self.name = b"", ""
        self.step()

    def step(self) -> None:
        """Read the next result; the line is empty after the last one."""
        self._number += 1
        self.line = self._file.readline(MAX_LINE_BYTES)
        if not self.line:
            return
        try:
            result = json.loads(self.line)
            self.name = str(result.get("custom_id", result["id"]))
        except (ValueError, RecursionError, KeyError, AttributeError):
            result = None
        if result is None or not self.line.endswith(b"\n"):
            raise SettingError(f"{self.path} line {self._number} is not a whole result: finish its shard first")

    @property
    def place(self) -> str:
        return f"{self.path} line {self._number}"


def merge(names: Iterable[str | int], paths: Sequence[Path], target: Path) -> int:
    """Write the results of several files into one, in the order of the rows with these ids; return their number.

    Each file has its results in the order of the rows, as `tinychat batch` writes them; they may come from several
    splits. `SettingError` if a row has no result or two, or a result has no row; then `target` stays as it was.
    """
    if target.exists() and any(os.path.samefile(path, target) for path in paths):
        raise SettingError(f"{target} is one of the files to merge: give another file with -o")
    count = 0
    with ExitStack() as stack:
        parts = [_Part(path, stack.enter_context(open(path, "rb"))) for path in paths]
        out = stack.enter_context(replacing(target))
        for line in _merged(names, parts):
            out.write(line)
            count += 1
    return count


def _merged(names: Iterable[str | int], parts: Sequence[_Part]) -> Iterator[bytes]:
    for name in names:
        found = [part for part in parts if part.line and part.name == str(name)]
        if not found:
            raise SettingError(f"row {name!r} has no result: answer all shards first, or name all their files")
        if len(found) > 1:
            raise SettingError(f"row {name!r} has two results: {found[0].place}, and {found[1].place}")
        yield found[0].line
        found[0].step()
    if rest := next((part for part in parts if part.line), None):
        raise SettingError(f"{rest.place}: the result of {rest.name!r} belongs to no row, or is its second one")
