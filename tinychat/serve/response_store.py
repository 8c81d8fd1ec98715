"""The responses that ``previous_response_id`` may name: in memory, the newest ones."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from uuid import uuid4

from tinychat.serve.api_error import ApiError
from tinychat.serve.wire import Payload

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20


@dataclass
class StoredResponse:
    """A response, the items that it answers, and those of all before it.

    Attributes
    ----------
    earlier, given : list of dict
        Items of the conversation before this response: of earlier ones, and of its own ``input``.
    response : dict
    """

    earlier: list[Payload]
    given: list[Payload]
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
        # Items of earlier responses are shared with those.
        size = len(json.dumps([stored.given, stored.response]))
        self._stored[stored.response["id"]] = stored, size
        self._bytes += size
        while self._stored and (len(self._stored) > self._most or self._bytes > self._most_bytes):
            self._bytes -= self._stored.popitem(last=False)[1][1]

    def get(self, response_id: str) -> StoredResponse:
        """Return a response.

        Raises
        ------
        ApiError
            If it is not stored, or no longer.
        """
        if response_id not in self._stored:
            raise ApiError(404, f"no response {response_id[:80]!r} is stored", code="not_found")
        return self._stored[response_id][0]

    def before(self, response_id: object) -> list[Payload]:
        """Return the items of the conversation that a body goes on with.

        Raises
        ------
        ApiError
        """
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._stored:
            message = f"no response {str(response_id)[:80]!r} is stored: send its items in input"
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
        return self.get(response_id).items

    def delete(self, response_id: str) -> None:
        """Forget a response.

        Raises
        ------
        ApiError
        """
        self.get(response_id)
        self._bytes -= self._stored.pop(response_id)[1]


def with_ids(items: list[Payload]) -> list[Payload]:
    """Return items that have ids and types, as the API lists them."""
    return [{"type": "message", "id": f"item_{uuid4().hex[:24]}", **item} for item in items]
