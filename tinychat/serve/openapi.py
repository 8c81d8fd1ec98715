"""``/openapi.json``: the endpoints, and the fields of their bodies (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from typing import Any

from tinychat.conversation.openai import NAMES
from tinychat.models.embedder import POOLINGS
from tinychat.serve import body_fields, llama_fields, ollama_body
from tinychat.serve.embeddings import ENCODINGS
from tinychat.setting_kinds import Integer, Kind, Number, Switch, Texts
from tinychat.settings import SETTINGS

Schema = dict[str, Any]


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _any_of(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def _one_of(values: Iterable[object]) -> Schema:
    return {"enum": [*values]}


def _integer(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least} | ({} if most is None else {"maximum": most})


_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_TEXTS, _OBJECTS, _IDS = _list_of(_TEXT), _list_of(_OBJECT), _list_of(_integer(0))
_CHOICES, _TOP_LOGPROBS = _integer(1, body_fields.MOST_CHOICES), _integer(0, 20)
_WIDEST = 1 << 64

_STREAMED: Schema = {
    "stream": _SWITCH,
    "stream_options": {"type": "object", "properties": {"include_usage": _SWITCH}},
    "return_progress": _SWITCH,
    "n": _CHOICES,
    "grammar": _TEXT,
}
_CONTENT: Schema = _any_of(_TEXT, _list_of({"type": "object", "properties": {"type": _TEXT}, "required": ["type"]}))
_MESSAGES: Schema = {
    "messages": _list_of({"type": "object", "properties": {"role": _TEXT, "content": _CONTENT}, "required": ["role"]})
}
_TOOLS: Schema = {"tools": _OBJECTS, "tool_choice": _any_of(_TEXT, _OBJECT), "parallel_tool_calls": _SWITCH}
_CHAT: Schema = _MESSAGES | _TOOLS | {"chat_template_kwargs": _OBJECT}
_OF_RESPONSES: Schema = {
    "input": _any_of(_TEXT, _OBJECTS),
    "instructions": _TEXT,
    "previous_response_id": _TEXT,
    "max_output_tokens": _integer(1),
    **_TOOLS,
    "text": _OBJECT,
    "reasoning": _OBJECT,
    "truncation": _one_of(["auto", "disabled"]),
    "store": _SWITCH,
    "stream": _SWITCH,
}
_OF_MESSAGES: Schema = {
    **_MESSAGES,
    "system": _any_of(_TEXT, _OBJECTS),
    "tools": _OBJECTS,
    "tool_choice": _OBJECT,
    "thinking": _OBJECT,
    "output_config": _OBJECT,
    "stop_sequences": _TEXTS,
    "stream": _SWITCH,
}
_LLAMA: Schema = {
    "n_predict": _integer(-2),
    "n_probs": _integer(0, 100),
    "n_cmpl": _CHOICES,
    "samplers": _TEXTS,
    "json_schema": _any_of(_OBJECT, _SWITCH),
    "grammar": _TEXT,
    "ignore_eos": _SWITCH,
    "stream": _SWITCH,
    "return_progress": _SWITCH,
    "return_tokens": _SWITCH,
    "timings_per_token": _SWITCH,
    "response_fields": _TEXTS,
    "id_slot": _integer(-1),
    "joins_prompt": _SWITCH,
    "opens_thinking": _SWITCH,
    "begun": _integer(0),
    "think_budget": _integer(0),
    "shown": _IDS,
    "tools": _OBJECTS,
} | {name: _one_of(values) for name, values in llama_fields.OFF.items() if name not in NAMES}
_PROMPT: Schema = {"prompt": _any_of(_TEXT, _list_of(_any_of(_TEXT, {"type": "integer"}, _IDS)))}
_FILE: Schema = {"type": "object", "properties": {"filename": _TEXT, "text": _TEXT}}
_OLLAMA: Schema = {
    "stream": _SWITCH | {"default": True},
    "format": _any_of(_one_of(["", "json"]), _OBJECT),
    "think": _any_of(_SWITCH, _one_of(ollama_body.EFFORTS)),
    "keep_alive": _any_of({"type": "number"}, _TEXT),
    "logprobs": _SWITCH,
    "top_logprobs": _TOP_LOGPROBS,
    "truncate": _SWITCH,
    "shift": _SWITCH,
}
_OLLAMA_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("role", "content", "thinking", "tool_name", "tool_call_id"), _TEXT),
        "images": _TEXTS,
        "tool_calls": _OBJECTS,
    },
    "required": ["role"],
}


def _of_kind(kind: Kind) -> Schema:
    """Return the schema of a setting's values."""
    match kind:
        case Number():
            name = "integer" if isinstance(kind, Integer) else "number"
            return {"type": name, "minimum": kind.low, "maximum": min(kind.high, _WIDEST - 1)}
        case Switch():
            return _SWITCH
        case Texts():
            return _any_of(_TEXT, _TEXTS)
    return {}


@cache
def _settings() -> Schema:
    rows = {name: SETTINGS[ours] for name, ours in NAMES.items()}
    return {name: _of_kind(row.kind) | {"description": row.help} for name, row in rows.items()}


def _bodies() -> dict[str, Schema]:
    """Return the schema of the body of each path."""
    chat: Schema = _settings() | _STREAMED | _CHAT | {"response_format": _OBJECT}
    chat |= {"logprobs": _SWITCH, "top_logprobs": _TOP_LOGPROBS, "reasoning_effort": _TEXT}
    completion: Schema = _settings() | _STREAMED | _PROMPT | {"response_format": _OBJECT}
    completion |= {"echo": _SWITCH, "logprobs": _integer(0, 20)}
    llama: Schema = _settings() | _LLAMA | _PROMPT
    hole = {"input_prefix": _TEXT, "input_suffix": _TEXT, "input_extra": _list_of(_FILE)}
    template = _CHAT | dict.fromkeys(("add_generation_prompt", "return_tokens", "return_calls", "thinking"), _SWITCH)
    embeddings = {
        "input": _any_of(_TEXT, _IDS, _list_of(_any_of(_TEXT, _IDS))),
        "encoding_format": _one_of(ENCODINGS),
        "dimensions": _integer(1),
        "pooling": _one_of(POOLINGS),
        "prompt": _TEXT,
    }
    documents = _list_of(_any_of(_TEXT, _OBJECT))
    ranking = {"query": _TEXT, "documents": documents, "texts": documents, "instruction": _TEXT, "top_n": _integer(1)}
    ranking |= dict.fromkeys(("return_documents", "return_text", "raw_scores", "truncate"), _SWITCH)
    tokenized = {"content": _TEXT} | dict.fromkeys(("add_special", "parse_special", "with_pieces"), _SWITCH)
    return {
        "/v1/chat/completions": _body(chat, "messages"),
        "/v1/completions": _body(completion, "prompt"),
        "/completion": _body(llama, "prompt"),
        "/infill": _body(llama | hole | {"prompt": _TEXT}),
        "/v1/embeddings": _body(embeddings, "input"),
        "/v1/rerank": _body(ranking, "query"),
        "/tokenize": _body(tokenized, "content"),
        "/detokenize": _body({"tokens": _IDS}, "tokens"),
        "/apply-template": _body(template, "messages"),
        "/v1/responses": _body(_settings() | _OF_RESPONSES, "input"),
        "/v1/responses/input_tokens": _body(_OF_RESPONSES, "input"),
        "/v1/messages": _body(_settings() | _OF_MESSAGES, "messages", "max_tokens"),
        "/v1/messages/count_tokens": _body(_OF_MESSAGES, "messages"),
        **{path: _body(fields) for path, fields in _ollama_fields().items()},
    }


def _ollama_fields() -> dict[str, Schema]:
    """Return the fields of the bodies of Ollama's paths."""
    off = {**llama_fields.OFF, **ollama_body.OFF_OPTIONS}
    options = _settings() | {"num_predict": _integer(-2)} | {name: _one_of(values) for name, values in off.items()}
    options |= {name: {} for name in sorted(ollama_body.LOAD_OPTIONS)}
    shared = _OLLAMA | {"options": {"type": "object", "properties": options}}
    texts = dict.fromkeys(("prompt", "suffix", "system"), _TEXT)
    embed = {"options": _OBJECT, "keep_alive": _OLLAMA["keep_alive"], "truncate": _SWITCH, "dimensions": {}}
    return {
        "/api/chat": shared | {"messages": _list_of(_OLLAMA_MESSAGE), "tools": _OBJECTS},
        "/api/generate": shared | texts | {"raw": _SWITCH, "context": _IDS, "images": _TEXTS},
        "/api/embed": embed | {"input": _any_of(_TEXT, _TEXTS)},
        "/api/embeddings": embed | {"prompt": _TEXT},
        "/api/show": {"verbose": _SWITCH},
        "/api/pull": {"stream": _SWITCH, "insecure": _SWITCH},
    }


def _body(properties: Schema, *required: str) -> Schema:
    schema = {"type": "object", "properties": {"model": _TEXT, **properties}, "required": [*required]}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "param": {}, "code": {}},
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_OLLAMA_ERROR = {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
_READ = ("/v1/models", "/health", "/props", "/api/tags", "/api/ps", "/api/version")


def _answers(path: str) -> Schema:
    """Return the answers of an endpoint: errors of Ollama's have their own form."""
    error = _OLLAMA_ERROR if path.startswith("/api/") else _ERROR
    return {
        "200": {"description": "The answer"},
        "default": {"description": "An error", "content": {"application/json": {"schema": error}}},
    }


def _parameter(name: str, place: str, schema: Schema) -> Schema:
    return {"name": name, "in": place, "required": True, "schema": schema}


@cache
def openapi_document(shows_slots: bool = True, shows_metrics: bool = True) -> Schema:
    """Return the description of the server as OpenAPI's JSON; what it does not serve is not in it."""
    paths: Schema = {
        path: {"post": {"requestBody": body, "responses": _answers(path)}} for path, body in _bodies().items()
    }
    read = [*_READ, *["/slots"] * shows_slots, *["/metrics"] * shows_metrics]
    paths |= {path: {"get": {"responses": _answers(path)}} for path in read}
    for path, methods in (
        ("/v1/responses/{response_id}", ("get", "delete")),
        ("/v1/responses/{response_id}/input_items", ("get",)),
    ):
        operations = {method: {"responses": _answers(path)} for method in methods}
        paths[path] = {"parameters": [_parameter("response_id", "path", _TEXT)], **operations}
    if shows_slots:
        path = "/slots/{id_slot}"
        action = _parameter("action", "query", _one_of(["save", "restore", "erase"]))
        paths[path] = {
            "post": {
                "parameters": [_parameter("id_slot", "path", _integer(0)), action],
                "requestBody": _body({"filename": _TEXT}),
                "responses": _answers(path),
            }
        }
    return {"openapi": "3.1.0", "info": {"title": "tinychat", "version": version("tinychat")}, "paths": paths}
