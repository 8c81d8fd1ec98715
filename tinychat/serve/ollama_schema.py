"""The fields of the bodies of Ollama's endpoints, for ``/openapi.json``."""

from __future__ import annotations

from typing import Any

from tinychat.serve.llama_fields import OFF
from tinychat.serve.ollama_body import EFFORTS, LOAD_OPTIONS, OFF_OPTIONS

Schema = dict[str, Any]

_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_SHARED: Schema = {
    "stream": _SWITCH | {"default": True},
    "format": {"anyOf": [{"enum": ["", "json"]}, _OBJECT]},
    "think": {"anyOf": [_SWITCH, {"enum": [*EFFORTS]}]},
    "keep_alive": {"anyOf": [{"type": "number"}, _TEXT]},
    "logprobs": _SWITCH,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "truncate": _SWITCH,
    "shift": _SWITCH,
}
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("role", "content", "thinking", "tool_name", "tool_call_id"), _TEXT),
        "tool_calls": {"type": "array", "items": _OBJECT},
    },
    "required": ["role"],
}


def ollama_bodies(settings: Schema) -> dict[str, Schema]:
    """Return the fields of the bodies of Ollama's paths; options are `settings` and some more."""
    options = {"type": "object", "properties": settings | _other_options()}
    shared = _SHARED | {"options": options}
    tools = {"type": "array", "items": _OBJECT}
    texts = dict.fromkeys(("prompt", "suffix", "system"), _TEXT)
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    embed = {"options": _OBJECT, "keep_alive": _SHARED["keep_alive"], "truncate": _SWITCH, "dimensions": {}}
    return {
        "/api/chat": shared | {"messages": {"type": "array", "items": _MESSAGE}, "tools": tools},
        "/api/generate": shared | texts | {"raw": _SWITCH, "context": ids},
        "/api/embed": embed | {"input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}},
        "/api/embeddings": embed | {"prompt": _TEXT},
        "/api/show": {"verbose": _SWITCH},
        "/api/pull": {"stream": _SWITCH, "insecure": _SWITCH},
    }


def _other_options() -> Schema:
    off = {name: {"enum": [*values]} for name, values in [*OFF.items(), *OFF_OPTIONS.items()]}
    ignored: Schema = {name: {} for name in sorted(LOAD_OPTIONS)}
    return {"num_predict": {"type": "integer", "minimum": -2}} | off | ignored
