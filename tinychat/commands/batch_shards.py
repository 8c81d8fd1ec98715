"""The shards of a batch: which rows one machine answers, and one file of the results of all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from tinychat.commands.batch_tasks import Task
from tinychat.errors import SettingError
from tinychat.rows.locations import Location
from tinychat.rows.sources import Row, RowReader


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
    """The results of a file or folder, read one after the other."""

    def __init__(self, location: Location) -> None:
        self._rows = iter(RowReader(location))
        self.row: Row | None = None
        self.name = ""
        self.step()

    def step(self) -> None:
        """Read the next result; there is no row after the last one."""
        self.row = next(self._rows, None)
        if self.row is None:
            return
        name = self.row.fields.get("custom_id", self.row.fields.get("id"))
        is_line = not self.row.file.format.is_table
        if name is None or self.row.error is not None or (is_line and not self.row.line.endswith(b"\n")):
            raise SettingError(f"{self.place} is not a whole result: finish its shard first")
        self.name = str(name)

    @property
    def place(self) -> str:
        return "" if self.row is None else f"{self.row.file} {self.row.unit} {self.row.number}"


def merged(tasks: Iterable[Task], locations: Sequence[Location]) -> Iterator[tuple[Task, Row]]:
    """Yield the tasks and their results in several files or folders, in the order of the tasks.

    Each has its results in the order of the rows, as `tinychat batch` writes them; they may come from several splits.
    `SettingError` if a row has no result or two, or a result has no row.
    """
    parts = [_Part(location) for location in locations]
    for task in tasks:
        found = [part for part in parts if part.row and part.name == str(task.id)]
        if not found:
            raise SettingError(f"row {task.id!r} has no result: answer all shards first, or name all their files")
        if len(found) > 1:
            raise SettingError(f"row {task.id!r} has two results: {found[0].place}, and {found[1].place}")
        if (row := found[0].row) is not None:
            yield task, row
        found[0].step()
    if rest := next((part for part in parts if part.row), None):
        raise SettingError(f"{rest.place}: the result of {rest.name!r} belongs to no row, or is its second one")
