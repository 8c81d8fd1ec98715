"""The responses that ``previous_response_id`` may name: in memory, the newest ones."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

from tinychat.errors import FieldError
from tinychat.serve.api_error import ApiError
from tinychat.serve.wire import Payload

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20


@dataclass
class StoredResponse:
    """A response, the items that it answers, and those of all before it."""

    earlier: list[Payload]  # items of the responses before this one
    given: list[Payload]  # items of its own ``input``
    response: Payload

    @property
    def items(self) -> list[Payload]:
        """All items of the conversation, those of the response included."""
        return [*self.earlier, *self.given, *self.response["output"]]


class ResponseStore:
    """Responses by their ids; the oldest ones make room for new ones."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._stored: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._bytes = 0

    def add(self, stored: StoredResponse) -> None:
        """Store a response."""
        # All that it holds, or a conversation would keep items of responses that are long gone.
        size = len(json.dumps([stored.earlier, stored.given, stored.response]))
        self._stored[stored.response["id"]] = stored, size
        self._bytes += size
        while self._stored and (len(self._stored) > self._most or self._bytes > self._most_bytes):
            self._bytes -= self._stored.popitem(last=False)[1][1]

    def get(self, response_id: str) -> StoredResponse:
        """Return a response; `ApiError` if it is not stored, or no longer."""
        if (found := self._stored.get(response_id)) is None:
            raise ApiError(404, f"no response {response_id[:80]!r} is stored", code="not_found")
        return found[0]

    def before(self, response_id: object) -> list[Payload]:
        """Return the items of the conversation that a body goes on with; `ApiError` if they are not stored."""
        if response_id is None:
            return []
        found = self._stored.get(response_id) if isinstance(response_id, str) else None
        if found is None:
            message = f"no response {str(response_id)[:80]!r} is stored: send its items in input"
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        return found[0].items

    def resolved(self, items: Sequence[Payload]) -> list[Payload]:
        """Return items, with references to items of stored responses resolved.

        `FieldError` if an item that is referred to is not stored.
        """
        if not any(item.get("type") == "item_reference" for item in items):
            return [*items]
        held = [one for one, _ in [*self._stored.values()]]
        known = {item["id"]: item for one in held for item in (*one.given, *one.response["output"])}
        return [_found(item, f"input[{index}].id", known) for index, item in enumerate(items)]

    def delete(self, response_id: str) -> None:
        """Forget a response; `ApiError` if it is not stored."""
        self.get(response_id)
        self._bytes -= self._stored.pop(response_id)[1]


def _found(item: Payload, path: str, known: Mapping[str, Payload]) -> Payload:
    if item.get("type") != "item_reference":
        return item
    name = item.get("id")
    if not isinstance(name, str) or name not in known:
        raise FieldError(path, "must be that of an item of a stored response: send the item itself")
    return known[name]


def as_listed(items: Sequence[Payload]) -> list[Payload]:
    """Return items of a body in the form in which the API lists them: with ids, and contents in parts."""
    return [_listed(item) for item in items]


def _listed(item: Payload) -> Payload:
    given = {name: value for name, value in item.items() if value is not None}
    found: Payload = {"type": "message", "id": f"item_{uuid4().hex[:24]}", "status": "completed", **given}
    if found["type"] == "message":
        found["content"] = [*_parts(found["role"], found["content"])]
    return {"summary": []} | found if found["type"] == "reasoning" else found


def _parts(role: str, content: str | list[Payload]) -> Iterator[Payload]:
    for part in [{"text": content}] if isinstance(content, str) else content:
        if "text" not in part:
            yield part
        elif role == "assistant":
            yield {"annotations": [], **part, "type": "output_text"}
        else:
            yield {**part, "type": "input_text"}
