"""Bodies of requests: JSON objects of bounded size and depth."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from tinychat.serve.api_error import ApiError
from tinychat.text.guard import well_formed_data

MOST_BYTES = 64 << 20
"""Most bytes of a body; a conversation of a million tokens has some four million, a photo in base64 up to ten."""
_DEEPEST = 64
_MOST_SECONDS = 120


async def read_object(request: HttpRequest, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the JSON object of a body, without keys whose value is null.

    With `may_be_empty`, a body without bytes is an object without keys. `ApiError` if it is no JSON object, too large
    or too deep.
    """
    data = await _read(request)
    if may_be_empty and not data:
        return {}
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
        if b"\\u" in data:
            # Halves of characters, which clients that cut texts send, cannot be sent back.
            value = well_formed_data(value)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON in UTF-8: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    if _is_deeper(value, _DEEPEST):
        raise ApiError(400, f"the body is nested deeper than {_DEEPEST} levels: flatten it")
    return {key: item for key, item in value.items() if item is not None}


async def _read(request: HttpRequest) -> bytearray:
    """Return the bytes of a body; ApiError if it is too large or does not come, or its client leaves."""
    data = bytearray()
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MOST_BYTES:
                    raise ApiError(413, f"the body is larger than {MOST_BYTES >> 20} MiB: shorten it")
    except TimeoutError:
        raise ApiError(408, f"the body has not come within {_MOST_SECONDS} seconds: send it again") from None
    except ClientDisconnect:
        raise ApiError(400, "the client has left before its body was there") from None
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than so many levels."""
    layer: list[object] = [value]
    for _ in range(levels):
        layer = [
            child
            for parent in layer
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not layer:
            return False
    return any(isinstance(item, dict | list) for item in layer)
