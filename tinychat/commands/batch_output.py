"""The file or folder of a batch's results, where that is not the file to which they are appended.

A plain file in JSON Lines is appended to, so that a later run continues it. Other formats cannot be continued: results
are appended to a journal beside it, in JSON Lines, and written in the format once all are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import click

from tinychat.commands.batch_tasks import Task
from tinychat.errors import SettingError, TextError
from tinychat.rows.locations import Format, Location, arrow
from tinychat.rows.result_columns import COLUMNS
from tinychat.rows.sources import Row
from tinychat.rows.tables import SchemaColumns, check_names, source_columns
from tinychat.rows.targets import row_writer

Answered = tuple[Task, Row]
"""A task, and the row of its result."""


class BatchOutput:
    """The results of the rows of `source` in `target`; the replies are of the JSON schema `schema`, if any.

    `click.UsageError` if the two do not fit together, `SettingError` if a package is missing.
    """

    def __init__(self, source: Location, target: Location, schema: str | None = None) -> None:
        self.source, self.target = source, target
        self._is_folder = not target.is_stream and (target.name.endswith("/") or target.is_folder)
        if self._is_folder and not source.is_folder:
            raise click.UsageError(f"{target} is a folder, but {source} is not: name a file with -o")
        files = [self._target_of(file) for file in source.files()] if self._is_folder else [target]
        self.has_tables = any(file.format.is_table for file in files)
        if any(file.format.kind == "parquet" or file.format.compression == "zst" for file in files):
            arrow()
        if self.has_tables and not source.can_be_read_again:
            raise click.UsageError(f"{source} can be read once only, and a table needs its columns: give a file")
        is_typed = any(file.format.kind == "parquet" for file in files)
        self._schema = SchemaColumns(schema, is_typed) if schema is not None and self.has_tables else None
        self._added = ["id", *COLUMNS, *(self._schema.columns if self._schema else ())]

    @property
    def is_appended(self) -> bool:
        """Whether results are appended to the target itself."""
        return not self._is_folder and not self.target.is_remote and self.target.format == Format()

    @property
    def journal(self) -> Path:
        """The file to which results are appended: for an address it is in the working folder."""
        if self.is_appended:
            return self.target.path
        name = f"{self.target.base_name}.journal"
        return Path(name) if self.target.is_remote else self.target.path.with_name(name)

    def check_new(self) -> None:
        """Refuse a target that is there already and cannot be continued; `SettingError`."""
        if self.is_appended or not self.target.exists:
            return
        if not self._is_folder or any(self._target_of(file).exists for file in self.source.files()):
            raise SettingError(f"{self.target} has results already: give another name with -o, or remove it")

    def check(self, task: Task) -> None:
        """Refuse a row whose result has no place in a table; `SettingError`."""
        if not self.has_tables:
            return
        check_names(task.row.fields.keys() - {"id"}, self._added)
        if task.url is not None or task.tools.tools:
            raise SettingError(f"row {task.id!r} asks for calls, or OpenAI's form: its result fits into .jsonl only")

    def write(self, answered: Iterable[Answered], parts: Sequence[Location] = ()) -> int:
        """Write all results; return how many replies have a value that is not of its column's type.

        `parts` are tables of results, if these come from such.
        """
        if not self._is_folder:
            return self._write(self.target, answered, self.source, parts)
        if not self.target.is_remote:
            self.target.path.mkdir(parents=True, exist_ok=True)
        bad = 0
        for file, group in groupby(answered, key=lambda pair: pair[0].row.file):
            bad += self._write(self._target_of(file), group, file, [part.child(file.base_name) for part in parts])
        return bad

    def _target_of(self, file: Location) -> Location:
        return self.target.child(file.base_name)

    def _write(
        self, target: Location, answered: Iterable[Answered], source: Location, parts: Sequence[Location]
    ) -> int:
        columns = self._columns(source, parts) if target.format.is_table else {}
        bad = 0
        with row_writer(target, columns) as write:
            for task, result in answered:
                fields: Mapping[str, Any] = {}
                if target.format.is_table:
                    fields = result.fields if parts else self._fields(task, result.fields)
                    bad += not parts and fields["error"] != result.fields.get("error")
                elif not result.line:
                    raise SettingError(f"{result.file} is a table, which cannot be merged into {target}")
                write(fields, result.line)
        return bad

    def _columns(self, source: Location, parts: Sequence[Location]) -> Mapping[str, Any]:
        if parts:
            return source_columns(next(part for part in parts if part.exists))
        # Rows without an id have their number.
        schema = self._schema.columns if self._schema else {}
        return {"id": int, **source_columns(source), **COLUMNS, **schema}

    def _fields(self, task: Task, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the columns of the row, of its answer, and of the reply's properties."""
        reply = result.get("text")
        answer = {
            "reply": reply,
            "finish_reason": result.get("finish_reason"),
            "prompt_tokens": result.get("prompt_tokens", 0),
            "new_tokens": result.get("new_tokens", 0),
            "error": result.get("error"),
        }
        values: Mapping[str, Any] = {}
        if self._schema is not None and reply is not None:
            try:
                values = self._schema.values(reply)
            except TextError as error:
                answer["error"] = str(error)
        return {**task.row.fields, "id": task.id, **answer, **values}


def in_order(tasks: Iterable[Task], results: Iterable[Row]) -> Iterator[Answered]:
    """Pair tasks with the results of a journal; `SettingError` if a row has changed since it was answered."""
    for task, result in zip_longest(tasks, results):
        name = None if result is None else result.fields.get("custom_id", result.fields.get("id"))
        if task is None or name != task.id:
            raise SettingError("the rows have changed while they were answered: give another file with -o")
        yield task, result
