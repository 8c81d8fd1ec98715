"""The results of a batch: one whole line for each task, in the order of the tasks.

A result has a digest of its task, the settings and the model, by which a later run recognizes it.
"""

from __future__ import annotations

import hashlib
import json
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

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.reply import Reply
    from tinychat.generate.request import Request

# Made once: `json.dumps` makes an encoder for each value.
_sorted_json = json.JSONEncoder(sort_keys=True).encode

_LINE_START = b'{"id": '
# Longer than any result.
MAX_LINE_BYTES = 256 << 20
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

    Parameters
    ----------
    out : binary stream
    common : sequence
        Values that all tasks share: they are a part of each digest.

    Attributes
    ----------
    done, failed, cut : int
        Tasks with a result; those with an error; those with a reply that is cut.
    tokens, prompt_tokens, cached_tokens : int
        New tokens of this run; those of its prompts; those of them that were served from the cache.
    """

    def __init__(self, out: BinaryIO, common: Sequence[object] = ()) -> None:
        self._out, self._common = out, _sorted_json([str(value) for value in common])
        # The last request and its settings: most tasks have the same.
        self._request: Request | None = None
        self._settings = ""
        self.done = self.failed = self.cut = self.tokens = self.prompt_tokens = self.cached_tokens = 0
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

    If `tasks` is an iterator, the first of the others is its next. A new file is removed if an error precedes the first
    result. An incomplete last line is removed.
    """

    def __init__(self, path: Path, tasks: Iterable[Task], common: Sequence[object] = ()) -> None:
        self._path = path
        self._is_new = not path.exists()
        self._file = open(path, "a+b")
        super().__init__(self._file, common)
        try:
            # If the open file no longer has this name, another process has removed it.
            if not (try_lock(self._file.fileno()) and is_file_at(path, self._file.fileno())):
                raise SettingError(f"another batch is writing to {path}: wait for it, or give another file with -o")
            self._read_done(tasks)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # While it is locked, so that no other process uses it. Windows cannot delete an open file.
        if error is not None and self._is_new and self.done == 0:
            with suppress(PermissionError):
                self._path.unlink(missing_ok=True)
        self._file.close()

    def _read_done(self, tasks: Iterable[Task]) -> None:
        self._file.seek(0)
        end = 0
        rest = iter(tasks)
        while (line := self._file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            if (task := next(rest, None)) is None:
                raise self._not_ours()
            self._count(Outcome(line, *_failed_and_cut(self._result(task, line))))
            end = self._file.tell()
        is_cut_off = line.startswith(_LINE_START) or _LINE_START.startswith(line)
        if not is_cut_off or len(line) == MAX_LINE_BYTES:
            raise self._not_ours()
        self._file.truncate(end)

    def _result(self, task: Task, line: bytes) -> dict[str, object]:
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            raise self._not_ours() from None
        whole = isinstance(result, dict) and result.keys() & {"text", "error"}
        key = "id" if task.url is None else "custom_id"
        if not whole or (result.get(key), result.get("asked")) != (task.id, self.digest(task)):
            raise self._not_ours()
        return dict(result)

    def _not_ours(self) -> SettingError:
        where = f"{self._path} line {self.done + 1}"
        return SettingError(f"{where} is not a result of this batch with these settings: give another file with -o")


def _stable(fields: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if key not in _UNSTABLE}


def _failed_and_cut(result: dict[str, object]) -> tuple[bool, bool]:
    response = result.get("response")
    is_refused = isinstance(response, dict) and response.get("status_code") != 200
    return result.get("error") is not None or is_refused, result.get("truncated") is True or _openai_cut(response)


def _openai_cut(response: object) -> bool:
    body = response.get("body") if isinstance(response, dict) else None
    choices = body.get("choices") if isinstance(body, dict) else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") == "length" for choice in choices
    )


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
