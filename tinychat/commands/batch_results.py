"""The results of a batch: one line for each task, in the order of the tasks, never half of one.

A result carries a digest of all that it follows from, the model included, wherever its folder lies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from tinychat.commands.batch_tasks import Task
from tinychat.conversation.openai import error_body, reply_body
from tinychat.errors import SettingError, StoreError, TinychatError
from tinychat.file_lock import is_file_at, try_lock

if TYPE_CHECKING:
    from tinychat.generate.reply import Reply

_LINE_START = b'{"id": '
# Beyond any result, and any of the small files of a model.
_MAX_LINE_BYTES = 256 << 20


class Results:
    """Writes results as they come, of all tasks from the first on.

    Parameters
    ----------
    out : binary stream
        Where they go.
    common : sequence
        What all tasks have in common beside their own fields: a result belongs to a task only if this is the same too.

    Attributes
    ----------
    done : int
        Tasks that have their result.
    failed, cut : int
        Those among them whose result is an error, or a reply that was cut.
    tokens : int
        Of the replies that this run has added.
    """

    def __init__(self, out: BinaryIO, common: Sequence[object] = ()) -> None:
        self._out, self._common = out, [str(value) for value in common]
        self.done = self.failed = self.cut = self.tokens = 0
        self._begun = monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the stream open: it is not ours."""

    def add(self, task: Task, name: str, result: Reply | TinychatError) -> None:
        """Write the result of the next task, in one piece: the reply of the model of that name, or an error."""
        asked = self._asked(task)
        fields: dict[str, object]
        if task.url is not None:
            status, body = (
                (400, error_body(str(result)))
                if isinstance(result, TinychatError)
                else (200, reply_body(name, task.url, asked, result))
            )
            response = {"status_code": status, "request_id": asked, "body": body}
            fields = {"id": f"batch_req_{asked}", "custom_id": task.id, "asked": asked}
            fields |= {"response": response, "error": None}
        else:
            fields = {"id": task.id, "asked": asked}
            fields |= {"error": str(result)} if isinstance(result, TinychatError) else result.as_json()
        self.tokens += 0 if isinstance(result, TinychatError) else len(result.token_ids)
        self._out.write(json.dumps(fields).encode() + b"\n")
        self._out.flush()
        self._count(fields)

    def _asked(self, task: Task) -> str:
        """Return a digest of everything that a task's result follows from."""
        # What few tasks have is left out of the others: their results of before stay theirs.
        rest = [field for field in (task.url, task.schema) if field is not None]
        what = json.dumps([self._common, task.prompt, task.request.values(), task.error, *rest], sort_keys=True)
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def _count(self, result: dict[str, object]) -> None:
        self.done += 1
        response = result.get("response")
        is_refused = isinstance(response, dict) and response.get("status_code") != 200
        self.failed += result.get("error") is not None or is_refused
        self.cut += result.get("truncated") is True or _openai_cut(response)

    @property
    def seconds(self) -> float:
        """How long this run has taken so far."""
        return monotonic() - self._begun


class BatchResults(Results):
    """Appends results to a file; what an earlier run has written counts as done.

    Parameters
    ----------
    path : Path
        Made if it does not exist, and gone again where an error comes before the first result. A last line
        that was cut in mid-writing is taken away.
    tasks : sequence of Task
        All tasks, those that are done included.
    common : sequence
        As for `Results`.

    Raises
    ------
    SettingError
        If the file holds something other than results of these tasks, or another process is writing to it.
    """

    def __init__(self, path: Path, tasks: Sequence[Task], common: Sequence[object] = ()) -> None:
        self._path = path
        self._is_new = not path.exists()
        self._file = open(path, "a+b")
        super().__init__(self._file, common)
        try:
            # If the open file no longer has this name, another process has just removed it.
            if not (try_lock(self._file.fileno()) and is_file_at(path, self._file.fileno())):
                raise SettingError(f"another batch is writing to {path}: wait for it, or give another file with -o")
            self._take_over(tasks)
        except BaseException:
            self._file.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # While it is locked: no other process uses it. Windows cannot delete an open file: an empty one stays there.
        if error is not None and self._is_new and self.done == 0:
            with suppress(PermissionError):
                self._path.unlink(missing_ok=True)
        self._file.close()

    def _take_over(self, tasks: Sequence[Task]) -> None:
        self._file.seek(0)
        end = 0
        while (line := self._file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
            if self.done == len(tasks):
                raise self._foreign()
            self._count(self._result(tasks[self.done], line))
            end = self._file.tell()
        is_cut_off = line.startswith(_LINE_START) or _LINE_START.startswith(line)
        if not is_cut_off or len(line) == _MAX_LINE_BYTES:
            raise self._foreign()
        self._file.truncate(end)

    def _result(self, task: Task, line: bytes) -> dict[str, object]:
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            raise self._foreign() from None
        whole = isinstance(result, dict) and result.keys() & {"text", "error"}
        key = "id" if task.url is None else "custom_id"
        if not whole or (result.get(key), result.get("asked")) != (task.id, self._asked(task)):
            raise self._foreign()
        return dict(result)

    def _foreign(self) -> SettingError:
        what = f"{self._path} line {self.done + 1} is not a result of this batch with these settings"
        return SettingError(f"{what}: give another file with -o")


def _openai_cut(response: object) -> bool:
    body = response.get("body") if isinstance(response, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "length" for choice in choices
    )


def converted_folder(model: str | None) -> Path | None:
    """Return the folder of the MODEL of a command; None if there is none yet, or no such model."""
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.api import locate
    from tinychat.store.names import find

    try:
        if model is None or find(model).kind in ("folder", "stored"):
            return locate(model)
    except StoreError:
        pass
    return None
