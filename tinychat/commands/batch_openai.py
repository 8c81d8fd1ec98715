"""The lines of a batch file in OpenAI's form, so that files move between services unchanged.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...], "max_tokens": 50}}

become ``{"id": ..., "custom_id": "a", "response": {"status_code": 200, "body": {...}}, "error": null}``, with a status
of 400 where a line cannot be answered (https://platform.openai.com/docs/guides/batch).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinychat.conversation.messages import as_messages
from tinychat.errors import FieldError, SettingError

if TYPE_CHECKING:
    from tinychat.generate.reply import Reply

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_SAME_NAMES = ("temperature", "top_p", "seed", "stop", "top_k", "min_p", "max_tokens")
# What changes nothing here: for accounts, for other models, or the only value that there is.
_IGNORED = ("model", "user", "metadata", "store", "service_tier", "safety_identifier")
_ONLY_VALUES = {"n": 1, "stream": False, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, "best_of": 1}
_FINISH_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length", "context": "length"}


def is_openai(fields: Mapping[str, Any]) -> bool:
    """Say whether a line is in this form."""
    return "custom_id" in fields and "prompt" not in fields and "messages" not in fields


def read_line(fields: Mapping[str, Any]) -> tuple[str, str | list[dict[str, object]], dict[str, Any]]:
    """Return what a line asks for.

    Returns
    -------
    url : str
        `CHAT` or `COMPLETION`.
    prompt : str or list of dict
        A text to continue, or messages.
    settings : dict
        Fields of `Request`.

    Raises
    ------
    SettingError
        If the line asks for something else, or what cannot be had.
    """
    unknown = sorted(fields.keys() - {"custom_id", "method", "url", "body"})
    if unknown:
        raise SettingError(f"the key {unknown[0]!r} is not known; known are custom_id, method, url, body")
    if fields.get("method", "POST") != "POST":
        raise FieldError("method", "must be POST")
    url, body = fields.get("url"), fields.get("body")
    if url not in (CHAT, COMPLETION):
        raise FieldError("url", f"must be {CHAT} or {COMPLETION}")
    if not isinstance(body, dict):
        raise FieldError("body", "must be an object")
    body = {key: value for key, value in body.items() if value is not None and key not in _IGNORED}
    prompt = _messages(body.pop("messages", None)) if url == CHAT else _text(body.pop("prompt", None))
    return url, prompt, _settings(body)


def _settings(body: dict[str, Any]) -> dict[str, Any]:
    settings = {key: body.pop(key) for key in _SAME_NAMES if key in body}
    if "max_completion_tokens" in body:
        settings["max_tokens"] = body.pop("max_completion_tokens")
    for key, value in body.items():
        if key not in _ONLY_VALUES:
            raise FieldError(key, "is not supported")
        if value != _ONLY_VALUES[key]:
            raise FieldError(key, f"must be {_ONLY_VALUES[key]!r}")
    return settings


def _messages(value: object) -> list[dict[str, object]]:
    """Return messages; contents in parts are joined, if all of them are text."""
    if isinstance(value, list):
        value = [_joined(message) if isinstance(message, dict) else message for message in value]
    return [message.as_dict() for message in as_messages(value)]


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if not all(isinstance(part, dict) and part.get("type") == "text" and "text" in part for part in content):
        raise FieldError("messages", "must be text: this model reads nothing else")
    return message | {"content": "".join(str(part["text"]) for part in content)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FieldError("prompt", "must be a text")
    return value


def answer(name: str, url: str, asked: str, reply: Reply) -> dict[str, object]:
    """Return the response to a line that was answered. name : the model's; asked : the line's digest."""
    summary = reply.summary
    said = {"message": {"role": "assistant", "content": reply.text}} if url == CHAT else {"text": reply.text}
    choice = {"index": 0, **said, "logprobs": None, "finish_reason": _FINISH_REASONS.get(summary.finish_reason)}
    usage = {
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.new_tokens,
        "total_tokens": summary.prompt_tokens + summary.new_tokens,
        "prompt_tokens_details": {"cached_tokens": summary.reused_tokens},
    }
    kind, prefix = ("chat.completion", "chatcmpl") if url == CHAT else ("text_completion", "cmpl")
    body = {
        "id": f"{prefix}-{asked}",
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "choices": [choice],
        "usage": usage,
    }
    return {"response": _response(200, asked, body), "error": None}


def refusal(asked: str, problem: str) -> dict[str, object]:
    """Return the response to a line that cannot be answered."""
    error = {"message": problem, "type": "invalid_request_error", "param": None, "code": None}
    return {"response": _response(400, asked, {"error": error}), "error": None}


def _response(status: int, asked: str, body: dict[str, object]) -> dict[str, object]:
    return {"status_code": status, "request_id": asked, "body": body}
