"""Requests and replies in OpenAI's form: the fields of a body, in batch files or elsewhere.

A body of ``/v1/chat/completions`` has messages, one of ``/v1/completions`` a prompt; the other fields are settings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError
from tinychat.settings import LINE, SETTINGS, names
from tinychat.tools.definitions import ToolChoice, tool_choice

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.reply import Reply, Summary

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")
# Our names of settings by those in bodies.
NAMES = {each: name for name in names(entry=LINE) for each in (name, *SETTINGS[name].openai)}
# What changes nothing here: for accounts, for other models, or the only value that there is.
_IGNORED = ("model", "user", "metadata", "store", "service_tier", "safety_identifier")
_ONLY_VALUES = {"n": 1, "stream": False, "logprobs": False, "best_of": 1}
NO_TOOLS = ToolChoice()
_FINISH_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length", "context": "length", "loop": "length"}


class Body(NamedTuple):
    """The parts of a request: a text to continue or messages, fields of `Request`, schema of the reply, and tools."""

    prompt: str | list[dict[str, object]]
    settings: dict[str, Any]
    schema: str | None
    tools: ToolChoice


def read_body(url: str, body: Mapping[str, Any]) -> Body:
    """Return the parts of a body sent to `CHAT` or `COMPLETION`; `SettingError` if it asks for anything unsupported."""
    given = {key: value for key, value in body.items() if value is not None and key not in _IGNORED}
    prompt = read_messages(given.pop("messages", None)) if url == CHAT else _text(given.pop("prompt", None))
    schema = schema_of(given.pop("response_format", None))
    tools = take_tools(given, schema) if url == CHAT else NO_TOOLS
    return Body(prompt, _settings(given), schema, tools)


def take_tools(fields: dict[str, Any], schema: str | None) -> ToolChoice:
    """Take out `TOOL_FIELDS`; return the choice of tools, which holds every call to the schema of its tool.

    `FieldError` if they are malformed, or there is a `schema` of the reply, too.
    """
    if not any(name in fields for name in TOOL_FIELDS):
        return NO_TOOLS
    choice = tool_choice(*(fields.pop(name, None) for name in TOOL_FIELDS))
    if choice.tools and schema is not None:
        raise FieldError("response_format", "cannot be given beside tools: leave one out")
    return replace(choice, constrains=bool(choice.tools))


def schema_of(response_format: object) -> str | None:
    """Return the JSON schema of a `response_format`, as JSON; None where the reply may be any text."""
    match response_format:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return '{"type": "object"}'
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return json.dumps(schema)
    forms = '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": {...}}}'
    raise FieldError("response_format", f"must be {forms}")


def _settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in fields.items():
        if key in NAMES:
            continue
        if key not in _ONLY_VALUES:
            raise FieldError(key, "is not supported")
        if value != _ONLY_VALUES[key]:
            raise FieldError(key, f"must be {_ONLY_VALUES[key]!r}")
    return {NAMES[key]: value for key, value in fields.items() if key in NAMES}


def read_messages(value: object, sees_images: bool = True) -> list[dict[str, object]]:
    """Return messages as `Message.as_dict` does, for a model that `sees_images` or not.

    `FieldError` names a message that is wrong.
    """
    return [message.as_dict() for message in as_messages(value, sees_images)]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FieldError("prompt", "must be a text")
    return value


def call_fields(calls: ReplyCalls) -> dict[str, object]:
    """Return the content of a reply and its calls, in OpenAI's form."""
    return {"content": calls.content or None, "tool_calls": [call.as_dict() for call in calls.calls]}


def reply_body(name: str, url: str, asked: str, reply: Reply, calls: ReplyCalls | None = None) -> dict[str, object]:
    """Return the body of an answer of the model `name` to the request `asked`; `calls` if that had tools."""
    summary = reply.summary
    reason = _FINISH_REASONS.get(summary.finish_reason)
    content: dict[str, object] = {"content": reply.text}
    if calls is not None and calls.calls:
        content, reason = call_fields(calls), "tool_calls" if reason == "stop" else reason
    said = {"message": {"role": "assistant", **content}} if url == CHAT else {"text": reply.text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
    kind, prefix = ("chat.completion", "chatcmpl") if url == CHAT else ("text_completion", "cmpl")
    return {
        "id": f"{prefix}-{asked}",
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "choices": [choice],
        "usage": usage([summary], 1),
    }


def error_body(problem: str) -> dict[str, object]:
    """Return the body of an answer to a request that cannot be met."""
    return {"error": {"message": problem, "type": "invalid_request_error", "param": None, "code": None}}


def usage(summaries: Sequence[Summary], choices: int) -> dict[str, Any]:
    """Return the counts of tokens in OpenAI's form; a prompt counts once for all of its choices."""
    prompts = summaries[::choices]
    prompt, new = sum(one.prompt_tokens for one in prompts), sum(one.new_tokens for one in summaries)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": {"cached_tokens": sum(one.reused_tokens for one in prompts)},
    }
