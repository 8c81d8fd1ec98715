"""``/openapi.json``: the endpoints, and the fields of their bodies (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from tinychat.models.embedder import POOLINGS
from tinychat.serve import body_fields, llama_fields
from tinychat.serve.embeddings import ENCODINGS
from tinychat.serve.ollama_schema import ollama_bodies
from tinychat.setting_kinds import Integer, Kind, Number, Switch, Texts
from tinychat.settings import SETTINGS

Schema = dict[str, Any]

_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TEXTS = {"type": "array", "items": _TEXT}
_WIDEST = 1 << 64

_STREAMED: Schema = {
    "stream": _SWITCH,
    "stream_options": {"type": "object", "properties": {"include_usage": _SWITCH}},
    "return_progress": _SWITCH,
    "n": {"type": "integer", "minimum": 1, "maximum": body_fields.MOST_CHOICES},
    "grammar": _TEXT,
}
_CHAT: Schema = {
    "messages": {
        "type": "array",
        "items": {"type": "object", "properties": {"role": _TEXT, "content": _TEXT}, "required": ["role"]},
    },
    "tools": {"type": "array", "items": _OBJECT},
    "tool_choice": {"anyOf": [_TEXT, _OBJECT]},
    "parallel_tool_calls": _SWITCH,
    "chat_template_kwargs": _OBJECT,
}
_RESPONSES_BODY: Schema = {
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _OBJECT}]},
    "instructions": _TEXT,
    "previous_response_id": _TEXT,
    "max_output_tokens": {"type": "integer", "minimum": 1},
    "tools": {"type": "array", "items": _OBJECT},
    "tool_choice": {"anyOf": [_TEXT, _OBJECT]},
    "parallel_tool_calls": _SWITCH,
    "text": _OBJECT,
    "reasoning": _OBJECT,
    "truncation": {"enum": ["auto", "disabled"]},
    "store": _SWITCH,
    "stream": _SWITCH,
}
_MESSAGES: Schema = {
    "messages": _CHAT["messages"],
    "system": {"anyOf": [_TEXT, {"type": "array", "items": _OBJECT}]},
    "tools": {"type": "array", "items": _OBJECT},
    "tool_choice": _OBJECT,
    "thinking": _OBJECT,
    "output_config": _OBJECT,
    "stop_sequences": _TEXTS,
    "stream": _SWITCH,
}
_RESPONSE_FORMAT: Schema = {"response_format": _OBJECT}
_LLAMA: Schema = {
    "n_predict": {"type": "integer", "minimum": -2},
    "n_probs": {"type": "integer", "minimum": 0, "maximum": 100},
    "n_cmpl": {"type": "integer", "minimum": 1, "maximum": body_fields.MOST_CHOICES},
    "samplers": _TEXTS,
    "json_schema": {"anyOf": [_OBJECT, _SWITCH]},
    "grammar": _TEXT,
    "ignore_eos": _SWITCH,
    "stream": _SWITCH,
    "return_progress": _SWITCH,
    "return_tokens": _SWITCH,
    "timings_per_token": _SWITCH,
    "response_fields": _TEXTS,
    "id_slot": {"type": "integer", "minimum": -1},
    "joins_prompt": _SWITCH,
    "opens_thinking": _SWITCH,
    "begun": {"type": "integer", "minimum": 0},
    "think_budget": {"type": "integer", "minimum": 0},
    "shown": _IDS,
    "tools": {"type": "array", "items": _OBJECT},
} | {name: {"enum": [*values]} for name, values in llama_fields.OFF.items() if name not in body_fields.NAMES}
_PROMPT: Schema = {
    "prompt": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, {"type": "integer"}, _IDS]}}]}
}
_FILE: Schema = {"type": "object", "properties": {"filename": _TEXT, "text": _TEXT}}


def _of_kind(kind: Kind) -> Schema:
    """Return the schema of a setting's values."""
    match kind:
        case Number():
            name = "integer" if isinstance(kind, Integer) else "number"
            high = kind.high if kind.high < _WIDEST else _WIDEST - 1
            return {"type": name, "minimum": kind.low, "maximum": high}
        case Switch():
            return _SWITCH
        case Texts():
            return {"anyOf": [_TEXT, _TEXTS]}
    return {}


@cache
def _settings() -> Schema:
    rows = {name: SETTINGS[ours] for name, ours in body_fields.NAMES.items()}
    return {name: _of_kind(row.kind) | {"description": row.help} for name, row in rows.items()}


def _bodies() -> dict[str, Schema]:
    """Return the schema of the body of each path."""
    chat: Schema = _settings() | _STREAMED | _CHAT | _RESPONSE_FORMAT
    chat |= {"logprobs": _SWITCH, "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20}}
    chat |= {"reasoning_effort": _TEXT}
    completion: Schema = _settings() | _STREAMED | _PROMPT | _RESPONSE_FORMAT
    completion |= {"echo": _SWITCH, "logprobs": {"type": "integer", "minimum": 0, "maximum": 20}}
    llama: Schema = _settings() | _LLAMA | _PROMPT
    hole = {"input_prefix": _TEXT, "input_suffix": _TEXT, "input_extra": {"type": "array", "items": _FILE}}
    template = _CHAT | dict.fromkeys(("add_generation_prompt", "return_tokens", "return_calls", "thinking"), _SWITCH)
    embeddings = {
        "input": {"anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}}]},
        "encoding_format": {"enum": [*ENCODINGS]},
        "dimensions": {"type": "integer", "minimum": 1},
        "pooling": {"enum": [*POOLINGS]},
        "prompt": _TEXT,
    }
    documents = {"type": "array", "items": {"anyOf": [_TEXT, _OBJECT]}}
    ranking = {"query": _TEXT, "documents": documents, "texts": documents, "instruction": _TEXT}
    ranking |= {"top_n": {"type": "integer", "minimum": 1}}
    ranking |= dict.fromkeys(("return_documents", "return_text", "raw_scores", "truncate"), _SWITCH)
    return {
        "/v1/chat/completions": _body(chat, "messages"),
        "/v1/completions": _body(completion, "prompt"),
        "/completion": _body(llama, "prompt"),
        "/infill": _body(llama | hole | {"prompt": _TEXT}),
        "/v1/embeddings": _body(embeddings, "input"),
        "/v1/rerank": _body(ranking, "query"),
        "/tokenize": _body(
            {"content": _TEXT, "add_special": _SWITCH, "parse_special": _SWITCH, "with_pieces": _SWITCH}, "content"
        ),
        "/detokenize": _body({"tokens": _IDS}, "tokens"),
        "/apply-template": _body(template, "messages"),
        "/v1/responses": _body(_settings() | _RESPONSES_BODY, "input"),
        "/v1/responses/input_tokens": _body(_RESPONSES_BODY, "input"),
        "/v1/messages": _body(_settings() | _MESSAGES, "messages", "max_tokens"),
        "/v1/messages/count_tokens": _body(_MESSAGES, "messages"),
        **{path: _body(fields) for path, fields in ollama_bodies(_settings()).items()},
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


def _responses(error: Schema) -> Schema:
    """Return the answers of an endpoint, whose errors have this schema."""
    return {
        "200": {"description": "The answer"},
        "default": {"description": "An error", "content": {"application/json": {"schema": error}}},
    }


_RESPONSES = _responses(_ERROR)


def _responses_of(path: str) -> Schema:
    return _responses(_OLLAMA_ERROR) if path.startswith("/api/") else _RESPONSES


_SLOT: Schema = {
    "parameters": [
        {"name": "id_slot", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}},
        {"name": "action", "in": "query", "required": True, "schema": {"enum": ["save", "restore", "erase"]}},
    ],
    "requestBody": _body({"filename": _TEXT}),
    "responses": _RESPONSES,
}
_STORED_ID = {"name": "response_id", "in": "path", "required": True, "schema": _TEXT}
_STORED: Schema = {
    "/v1/responses/{response_id}": {
        "parameters": [_STORED_ID],
        "get": {"responses": _responses(_ERROR)},
        "delete": {"responses": _responses(_ERROR)},
    },
    "/v1/responses/{response_id}/input_items": {
        "parameters": [_STORED_ID],
        "get": {"responses": _responses(_ERROR)},
    },
}
_READ = (
    *("/v1/models", "/health", "/props"),
    *("/api/tags", "/api/ps", "/api/version"),
)


@cache
def openapi_document(shows_slots: bool = True, shows_metrics: bool = True) -> Schema:
    """Return the description of the server as OpenAPI's JSON; what it does not serve is not in it."""
    read = [*_READ, *["/slots"] * shows_slots, *["/metrics"] * shows_metrics]
    paths: Schema = {
        path: {"post": {"requestBody": body, "responses": _responses_of(path)}} for path, body in _bodies().items()
    }
    paths |= {path: {"get": {"responses": _responses_of(path)}} for path in read}
    paths |= _STORED
    if shows_slots:
        paths["/slots/{id_slot}"] = {"post": _SLOT}
    return {"openapi": "3.1.0", "info": {"title": "tinychat", "version": version("tinychat")}, "paths": paths}
