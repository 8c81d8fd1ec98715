"""The rows of a batch as tasks, or as errors.

A line in OpenAI's form (https://platform.openai.com/docs/guides/batch) gets a result in that form, so that files move
between services unchanged:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "max_tokens": 50}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinychat.conversation import openai
from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError, SettingError
from tinychat.generate.request import Request
from tinychat.rows.columns import RowColumns, plain
from tinychat.rows.sources import Row
from tinychat.settings import LINE, names
from tinychat.tools.definitions import ToolChoice

_SETTINGS = names(entry=LINE)
_KEYS = ("id", "prompt", "messages", "response_format", *openai.TOOL_FIELDS, *_SETTINGS)
_OPENAI_KEYS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class Task:
    """One row to answer."""

    id: str | int  # the row's own, or its number from 1
    prompt: str | list[dict[str, object]]  # a text, or messages with `role` and `content`
    request: Request  # that of the command line, with the settings of this row
    row: Row
    url: str | None = None  # the endpoint that a line in OpenAI's form names; its result has that form too
    schema: str | None = None  # JSON schema of the reply, instead of the command line's
    tools: ToolChoice = openai.NO_TOOLS  # those that the reply may or must call
    error: str | None = None  # the problem of an invalid row, whose other fields are unset


def read_tasks(rows: Iterable[Row], request: Request, columns: RowColumns | None = None) -> Iterator[Task]:
    """Yield the tasks of rows; `request` has the default settings.

    With `columns` these ask, and others are data; without, each row is a line with the keys that `tinychat batch`
    documents. `SettingError` if a table lacks one of the columns.
    """
    for row in rows:
        if columns is not None and row.file.format.is_table and not row.error:
            _check_table(row, columns)
        yield _task(row, request, columns)


def _check_table(row: Row, columns: RowColumns) -> None:
    if missing := sorted(columns.names - row.fields.keys()):
        raise SettingError(
            f"{row.file} has no column {missing[0]!r}, only {', '.join(row.fields)}: name one of these with"
            " --prompt-column, --template or --setting-column"
        )


def _task(row: Row, request: Request, columns: RowColumns | None) -> Task:
    name: str | int = row.number
    url: str | None = None
    try:
        if row.error is not None:
            raise SettingError(row.error)
        if columns is not None:
            name = _id(plain(row.fields.get("id")), row.number)
            return Task(name, columns.prompt_of(row.fields), _changed(request, columns.settings_of(row.fields)), row)
        fields = {key: value for key, value in row.fields.items() if value is not None}
        if "custom_id" in fields and "prompt" not in fields and "messages" not in fields:
            name, url = _id(fields["custom_id"], row.number), openai.CHAT
            url, body = _addressed_body(fields)
            parsed = openai.read_body(url, body)
            changed = _changed(request, parsed.settings)
            return Task(name, parsed.prompt, changed, row, url, parsed.schema, parsed.tools)
        name = _id(fields.get("id"), row.number)
        settings = {key: fields[key] for key in _SETTINGS if key in fields}
        schema = openai.schema_of(fields.get("response_format"))
        tools = openai.take_tools(dict(fields), schema)
        return Task(name, _prompt(fields), _changed(request, settings), row, schema=schema, tools=tools)
    except SettingError as error:
        return Task(name, "", request, row, url, error=str(error))


def _changed(request: Request, settings: Mapping[str, Any]) -> Request:
    # A copy checks all settings once more.
    return replace(request, **settings) if settings else request


def _id(value: object, number: int) -> str | int:
    if value is None:
        return number
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise FieldError("id", "must be a text or a whole number")


def _addressed_body(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _check_keys(fields, _OPENAI_KEYS)
    if fields.get("method", "POST") != "POST":
        raise FieldError("method", "must be POST")
    url, body = fields.get("url"), fields.get("body")
    if url not in (openai.CHAT, openai.COMPLETION):
        raise FieldError("url", f"must be {openai.CHAT} or {openai.COMPLETION}")
    if not isinstance(body, dict):
        raise FieldError("body", "must be an object")
    return url, body


def _check_keys(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := sorted(fields.keys() - set(known)):
        raise SettingError(f"unknown key {unknown[0]!r}; expected one of {', '.join(known)}")


def _prompt(fields: Mapping[str, Any]) -> str | list[dict[str, object]]:
    _check_keys(fields, _KEYS)
    if ("prompt" in fields) == ("messages" in fields):
        raise SettingError("the line must have either the key prompt or the key messages")
    if "messages" in fields:
        return [message.as_dict() for message in as_messages(fields["messages"])]
    if not isinstance(fields["prompt"], str):
        raise FieldError("prompt", "must be a text")
    return fields["prompt"]
