"""Content of results, resources and prompts as text: what is no text is told by its kind and size."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from tinychat.json_file import one_line

_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/toml", "application/javascript")


def result_text(result: Mapping[str, Any]) -> str:
    """Return the text of a tool's result: its content, or its structured content as JSON where there is no other."""
    content = result.get("content")
    texts = [block_text(block) for block in content] if isinstance(content, list) else []
    if not texts and "structuredContent" in result:
        texts = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    return "\n".join(texts)


def block_text(block: object) -> str:
    """Return the text of a block of content, such as "[image, 12 KB]" for an image."""
    match block:
        case {"type": "text", "text": str() as text}:
            return text
        case {"type": "image" | "audio" as kind, "data": str() as data}:
            return f"[{kind}, {_size(data)}]"
        case {"type": "resource", "resource": dict() as resource}:
            return resource_text(resource)
        case {"type": "resource_link", "uri": str() as uri}:
            return f"[resource {one_line(uri)}]"
        case {"type": str() as kind}:
            return f"[{one_line(kind, 40)}]"
    return "[content that is not understood]"


def resource_text(resource: Mapping[str, Any]) -> str:
    """Return the text of a resource's contents; bytes that are text by their type are decoded."""
    match resource:
        case {"text": str() as text}:
            return text
        case {"blob": str() as data}:
            kind = one_line(str(resource.get("mimeType") or "file"), 40)
            if kind.startswith("text/") or kind.partition(";")[0] in _TEXT_TYPES:
                try:
                    return base64.b64decode(data, validate=True).decode("utf-8")
                except (binascii.Error, ValueError):
                    pass
            return f"[{kind}, {_size(data)}]"
    return "[a resource without contents]"


def _size(data: str) -> str:
    """Return the size of what Base64 holds."""
    size = len(data) * 3 // 4 - data[-2:].count("=")
    if size < 1000:
        return f"{max(size, 0)} B"
    return f"{size / 1000:.0f} KB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"
