"""Tools, resources and prompts of a server, checked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinychat.errors import McpError
from tinychat.json_file import one_line

# The longest of real servers have some thousands.
LONGEST_TOOL = 64 << 10
LONGEST_TOOL_NAME = 64
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 8
_LONGEST_NAME = 256
_LONGEST_TEXT = 4096


@dataclass(frozen=True)
class ServerTool:
    """A tool of a server, with name and description as the server gives them."""

    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)  # the JSON schema of its arguments, an object
    says_it_only_reads: bool = False  # the server's own word, which nothing checks

    @property
    def characters(self) -> int:
        """The length of what a model is told of it, as JSON."""
        return len(json.dumps([self.name, self.description, self.schema], ensure_ascii=False))


@dataclass(frozen=True)
class Resource:
    """A text or file that a server gives."""

    uri: str
    name: str = ""
    description: str = ""


@dataclass(frozen=True)
class PromptArgument:
    """A text that a prompt wants."""

    name: str
    description: str = ""
    is_required: bool = False


@dataclass(frozen=True)
class ServerPrompt:
    """A prompt that a server writes for the user."""

    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


def tool_name(server: str, tool: str) -> str:
    """Return the name of a server's tool for models: letters of ASCII, digits, "_" and "-", at most 64 of them.

    A longer one ends with a hash, so that two of a server stay two.
    """
    name = _OTHER.sub("_", f"{server}_{tool}")
    if len(name) <= LONGEST_TOOL_NAME:
        return name
    digest = hashlib.sha256(f"{server}\n{tool}".encode()).hexdigest()[:_HASH_DIGITS]
    return f"{name[: LONGEST_TOOL_NAME - _HASH_DIGITS - 1]}_{digest}"


def tool_of(item: Mapping[str, Any]) -> ServerTool:
    """Return the tool of an entry of ``tools/list``; `McpError`, without the server's name, if it is malformed."""
    name = _name(item, "name", "tool")
    schema = item.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise McpError(f"the tool {one_line(name)!r} has no schema of an object: it must have an inputSchema")
    hints = item.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    tool = ServerTool(name, str(item.get("description") or ""), schema, hints.get("readOnlyHint") is True)
    if tool.characters > LONGEST_TOOL:
        size = f"{tool.characters:,} characters, more than {LONGEST_TOOL:,}"
        raise McpError(f"the tool {one_line(name)!r} is described in {size}: leave it out, by tools = [...]")
    return tool


def resource_of(item: Mapping[str, Any]) -> Resource:
    """Return the resource of an entry of ``resources/list``; errors are those of `tool_of`."""
    name = one_line(str(item.get("title") or item.get("name") or ""))
    return Resource(_name(item, "uri", "resource", _LONGEST_TEXT), name, _text(item))


def prompt_of(item: Mapping[str, Any]) -> ServerPrompt:
    """Return the prompt of an entry of ``prompts/list``; errors are those of `tool_of`."""
    found = item.get("arguments") or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise McpError("a prompt has arguments that are no list of objects")
    arguments = [
        PromptArgument(_name(one, "name", "argument of a prompt"), _text(one), one.get("required") is True)
        for one in found
    ]
    return ServerPrompt(_name(item, "name", "prompt"), _text(item), tuple(arguments))


def _name(item: Mapping[str, Any], key: str, kind: str, longest: int = _LONGEST_NAME) -> str:
    name = item.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= longest or not name.isprintable():
        raise McpError(f"a {kind} has no {key} of 1 to {longest} printable characters")
    return name


def _text(item: Mapping[str, Any]) -> str:
    return str(item.get("description") or "")[:_LONGEST_TEXT]
