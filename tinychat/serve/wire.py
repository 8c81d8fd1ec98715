"""The forms in which protocols send streams and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinychat.serve.api_error import TOO_LONG, ApiError

Payload = dict[str, Any]


@dataclass(frozen=True)
class Wire:
    """The form of the streams and errors of a protocol."""

    media_type: str  # of streams
    event: Callable[[Payload], str]  # returns the text of a payload
    error: Callable[[ApiError], Payload]  # returns the body of an error
    ping: str = ""  # tells that the connection is alive; empty where the protocol has nothing for that
    end: str = ""  # of a stream


def _json(value: Payload) -> str:
    return json.dumps(value, ensure_ascii=False)


def _data(payload: Payload) -> str:
    """Return a server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    return f"data: {_json(payload)}\n\n"


def _named(payload: Payload) -> str:
    """Return a server-sent event that has the name of its type."""
    return f"event: {payload['type']}\n{_data(payload)}"


def _line(payload: Payload) -> str:
    return _json(payload) + "\n"


def _openai_error(error: ApiError) -> Payload:
    return error.body


def _anthropic_error(error: ApiError) -> Payload:
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    fields = error.body["error"]
    message = str(error)
    if fields["code"] == TOO_LONG:
        # Clients know an overflow by these words, and shorten the conversation.
        message = f"prompt is too long: {fields['n_prompt_tokens']} tokens > {fields['n_ctx']} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _ollama_error(error: ApiError) -> Payload:
    return {"error": str(error)}


_EVENTS = "text/event-stream"
# A comment, which clients skip.
_PING = ": ping\n\n"
# https://docs.claude.com/en/api/errors
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}

OPENAI = Wire(_EVENTS, _data, _openai_error, _PING, "data: [DONE]\n\n")
LLAMA = Wire(_EVENTS, _data, _openai_error, _PING)
RESPONSES = Wire(_EVENTS, _named, _openai_error, _PING)
ANTHROPIC = Wire(_EVENTS, _named, _anthropic_error, _named({"type": "ping"}))
OLLAMA = Wire("application/x-ndjson", _line, _ollama_error)


def wire_of(path: str, headers: Mapping[str, str]) -> Wire:
    """Return the form of the protocol to which a request belongs, by its path and its version of Anthropic's API."""
    if path.startswith("/v1/messages") or (path.startswith("/v1/models") and "anthropic-version" in headers):
        return ANTHROPIC
    return OLLAMA if path.startswith("/api/") else OPENAI
