"""The lines of a batch file as tasks, or as errors.

A line in OpenAI's form (https://platform.openai.com/docs/guides/batch) gets a result in that form, so that files move
between services unchanged:

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "max_tokens": 50}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinychat.conversation import openai
from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError, SettingError
from tinychat.generate.request import Request
from tinychat.settings import LINE, names
from tinychat.tools.definitions import ToolChoice

_SETTINGS = names(entry=LINE)
_KEYS = ("id", "prompt", "messages", "response_format", *openai.TOOL_FIELDS, *_SETTINGS)
_OPENAI_KEYS = ("custom_id", "method", "url", "body")


_NO_TOOLS = ToolChoice()
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Task:
    """One line.

    Attributes
    ----------
    id : str or int
        The line's own, or its number from 1.
    prompt : str or list of dict
        A text, or messages with `role` and `content`.
    request : Request
        That of the command line, with the settings of this line.
    url : str, optional
        The endpoint that a line in OpenAI's form names; its result has that form too.
    schema : str, optional
        JSON schema of the reply, instead of the command line's.
    tools : ToolChoice
        The tools that the reply may or must call.
    error : str, optional
        The problem of an invalid line, whose other fields are unset.
    """

    id: str | int
    prompt: str | list[dict[str, object]]
    request: Request
    url: str | None = None
    schema: str | None = None
    tools: ToolChoice = _NO_TOOLS
    error: str | None = None


def read_tasks(data: bytes, request: Request) -> list[Task]:
    """Parse the lines of a file, JSON objects in UTF-8; `request` has the default settings. Empty lines are skipped."""
    return [*stream_tasks(data.split(b"\n"), request)]


def stream_tasks(lines: Iterable[bytes], request: Request) -> Iterator[Task]:
    """Parse lines one by one, as `read_tasks` does all of a file."""
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            yield _task(number, content, request)


def _task(number: int, line: bytes, request: Request) -> Task:
    name: str | int = number
    url: str | None = None
    try:
        fields = _object(line)
        if "custom_id" in fields and "prompt" not in fields and "messages" not in fields:
            name, url = _id(fields["custom_id"], number), openai.CHAT
            url, body = _addressed_body(fields)
            parsed = openai.read_body(url, body)
            return Task(name, parsed.prompt, replace(request, **parsed.settings), url, parsed.schema, parsed.tools)
        name = _id(fields.get("id"), number)
        settings = {key: fields[key] for key in _SETTINGS if key in fields}
        schema = openai.schema_of(fields.get("response_format"))
        tools = openai.take_tools(dict(fields), schema)
        return Task(name, _prompt(fields), replace(request, **settings), schema=schema, tools=tools)
    except SettingError as error:
        return Task(name, "", request, url, error=str(error))


def _object(line: bytes) -> dict[str, Any]:
    """Parse a line; keys with the value null are left out."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingError(f"the line is not JSON in UTF-8: {error}") from None
    if not isinstance(fields, dict):
        raise SettingError('the line is not a JSON object: expected {"prompt": "..."} or {"messages": [...]}')
    return {key: value for key, value in fields.items() if value is not None}


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
