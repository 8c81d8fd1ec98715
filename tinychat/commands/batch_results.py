"""The results of a batch: one whole line for each task, in the order of the tasks.

A result has a digest of its task, the settings and the model, by which a later run recognizes it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self

from tinychat.commands.batch_tasks import Task
from tinychat.conversation.openai import call_fields, error_body, reply_body
from tinychat.errors import SettingError, StoreError, TinychatError
from tinychat.file_lock import is_file_at, try_lock
from tinychat.files import replacing
from tinychat.json_file import object_of

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.reply import Reply
    from tinychat.generate.request import Request

# Made once: `json.dumps` makes an encoder for each value.
_sorted_json = json.JSONEncoder(sort_keys=True, default=lambda image: image.digest).encode

_LINE_START = b'{"id": '
# Longer than any result.
MAX_LINE_BYTES = 256 << 20
_COPIED_BYTES = 1 << 20
# What depends on the moment and on other rows: the results of two runs have the same bytes.
_UNSTABLE = (
    "reused_tokens",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "first_token_seconds",
    "drafted_tokens",
    "accepted_tokens",
)


class Outcome(NamedTuple):
    """The result of a task: its line, and what it adds to the counts of `Results`."""

    line: bytes
    failed: bool
    cut: bool
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Results:
    """Writer of results to a stream, which stays open.

    `common` are values that all tasks share: they are a part of each digest.
    """

    def __init__(self, out: BinaryIO, common: Sequence[object] = ()) -> None:
        self._out, self._common = out, _sorted_json([str(value) for value in common])
        # The last request and its settings: most tasks have the same.
        self._request: Request | None = None
        self._settings = ""
        # Tasks with a result; those with an error; those with a reply that is cut.
        self.done = self.failed = self.cut = 0
        # New tokens of this run; those of its prompts; those of them that were served from the cache.
        self.tokens = self.prompt_tokens = self.cached_tokens = 0
        # Tasks that ended in an error in an earlier run, and are the first to be added in this one.
        self.again: list[Task] = []
        self._begun = self._ended = monotonic()

    @staticmethod
    def outcome(
        task: Task, asked: str, name: str, result: Reply | TinychatError, calls: ReplyCalls | None = None
    ) -> Outcome:
        """Return the outcome of a task with the digest `asked`: the reply of the model of this name, or an error.

        `calls` are those of the reply, if the task has tools.
        """
        fields: dict[str, object]
        if task.url is not None:
            status, body = (
                (400, error_body(str(result)))
                if isinstance(result, TinychatError)
                else (200, reply_body(name, task.url, asked, result, calls))
            )
            response = {"status_code": status, "request_id": asked, "body": body}
            fields = {"id": f"batch_req_{asked}", "custom_id": task.id, "asked": asked}
            fields |= {"response": response, "error": None}
        else:
            fields = {"id": task.id, "asked": asked}
            fields |= {"error": str(result)} if isinstance(result, TinychatError) else _stable(result.as_json())
            fields |= {} if calls is None else call_fields(calls)
        line, failed_and_cut = json.dumps(fields).encode() + b"\n", _failed_and_cut(fields)
        if isinstance(result, TinychatError):
            return Outcome(line, *failed_and_cut)
        return Outcome(line, *failed_and_cut, len(result.token_ids), len(result.prompt.ids), result.reused_tokens)

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes of the next tasks with one call."""
        if not outcomes:
            return
        self._out.write(b"".join([outcome.line for outcome in outcomes]))
        self._out.flush()
        self._ended = monotonic()
        for outcome in outcomes:
            self._count(outcome)

    def digest(self, task: Task) -> str:
        """Return the digest of everything that determines a task's result."""
        # Absent fields are left out: results of earlier versions, which lacked them, stay valid.
        rest: list[object] = [field for field in (task.url, task.schema) if field is not None]
        rest += [asdict(task.tools)] if task.tools.tools else []
        if self._request is not task.request:
            self._request, self._settings = task.request, _sorted_json(task.request.values())
        error = "null" if task.error is None else _sorted_json(task.error)
        parts = [self._common, _sorted_json(task.prompt), self._settings, error, *map(_sorted_json, rest)]
        text = f"[{', '.join(parts)}]"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _count(self, outcome: Outcome) -> None:
        self.done += 1
        self.failed += outcome.failed
        self.cut += outcome.cut
        self.tokens += outcome.tokens
        self.prompt_tokens += outcome.prompt_tokens
        self.cached_tokens += outcome.cached_tokens

    def begin(self) -> None:
        """Begin to measure `seconds`, once the model is loaded."""
        self._begun = self._ended = monotonic()

    @property
    def seconds(self) -> float:
        """Duration of this run up to its last result."""
        return self._ended - self._begun

    @property
    def rates(self) -> str:
        """Tokens a second, and the share of the prompts' tokens that was served from the cache, in this run."""
        rate = self.tokens / self.seconds if self.seconds > 0.0 else 0.0
        cached = self.cached_tokens / max(1, self.prompt_tokens)
        return f"{rate:.1f} tok/s; {cached:.0%} of the prompts from the cache"


class BatchResults(Results):
    """Writer that appends results to a file; those of an earlier run of the same `tasks` count as done.

    If `tasks` is an iterator, the first of the others is its next. A task with an error is done `again`, unless it is
    itself still wrong; its new line takes the place of the error once all such lines are there, or the run ends. A new
    file is removed if an error precedes the first result. An incomplete last line is removed.
    """

    def __init__(self, path: Path, tasks: Iterable[Task], common: Sequence[object] = ()) -> None:
        self._path = path
        self._is_new = not path.exists()
        self._file = self._open()
        super().__init__(self._file, common)
        # Where the lines of the errors begin, and those for their places.
        self._places: list[int] = []
        self._repaired: list[bytes] = []
        try:
            self._read_done(tasks)
        except BaseException:
            self._file.close()
            raise

    def _open(self) -> BinaryIO:
        file = open(self._path, "a+b")
        # If the open file no longer has this name, another process has removed it.
        if not (try_lock(file.fileno()) and is_file_at(self._path, file.fileno())):
            file.close()
            raise SettingError(f"another batch is writing to {self._path}: wait for it, or give another file with -o")
        return file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._repair()
            # While it is locked, so that no other process uses it. Windows cannot delete an open file.
            if error is not None and self._is_new and self.done == 0:
                with suppress(PermissionError):
                    self._path.unlink(missing_ok=True)
        finally:
            self._file.close()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Write the outcomes of the next tasks, those of `again` first."""
        missing = len(self._places) - len(self._repaired)
        for outcome in outcomes[:missing]:
            self._repaired.append(outcome.line)
            self._count(outcome)
        if 0 < missing <= len(outcomes):
            self._repair()
        super().add(outcomes[missing:])

    def _repair(self) -> None:
        """Put the lines that were done again into the places of the errors."""
        if not self._repaired:
            return
        self._file.seek(0)
        with replacing(self._path.resolve(), is_private=False) as new:
            for place, line in zip(self._places, self._repaired, strict=False):
                _copy(self._file, new, place - self._file.tell())
                self._file.readline()
                new.write(line)
            shutil.copyfileobj(self._file, new)
            # Windows replaces no open file.
            self._file.close()
        self._places, self._repaired = [], []
        self._file = self._out = self._open()

    def _read_done(self, tasks: Iterable[Task]) -> None:
        self._file.seek(0)
        end = 0
        rest = iter(tasks)
        while (line := self._file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            if (task := next(rest, None)) is None:
                raise self._not_ours()
            result = self._result(line)
            failed, cut = _failed_and_cut(result)
            name = result.get("id" if task.url is None else "custom_id")
            is_same = (name, result["asked"]) == (task.id, self.digest(task))
            if failed and not (is_same and task.error is not None):
                self.again.append(task)
                self._places.append(end)
            elif is_same:
                self._count(Outcome(line, failed, cut))
            else:
                raise self._not_ours()
            end = self._file.tell()
        is_cut_off = line.startswith(_LINE_START) or _LINE_START.startswith(line)
        if not is_cut_off or len(line) == MAX_LINE_BYTES:
            raise self._not_ours()
        self._file.truncate(end)

    def _result(self, line: bytes) -> dict[str, object]:
        result = object_of(line)
        if result is None or "asked" not in result or not result.keys() & {"text", "error"}:
            raise self._not_ours()
        return result

    def _not_ours(self) -> SettingError:
        where = f"{self._path} line {self.done + len(self.again) + 1}"
        return SettingError(f"{where} is not a result of this batch with these settings: give another file with -o")


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0:
        part = source.read(min(size, _COPIED_BYTES))
        target.write(part)
        size -= len(part)


def _stable(fields: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if key not in _UNSTABLE}


def _failed_and_cut(result: dict[str, object]) -> tuple[bool, bool]:
    match result:
        case {"response": {"status_code": 200, "body": {"choices": [{"finish_reason": reason}]}}}:
            return False, reason == "length"
        case {"response": {}}:
            return True, False
    return result.get("error") is not None, result.get("truncated") is True


def converted_folder(model: str | None) -> Path | None:
    """Return the folder of a converted MODEL, None if it is not converted or does not exist."""
    from tinychat.api import locate
    from tinychat.store.names import find

    try:
        if model is None or find(model).kind in ("folder", "stored"):
            return locate(model)
    except StoreError:
        pass
    return None
