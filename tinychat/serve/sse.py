"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

PING = ": ping\n\n"
"""A comment, which clients skip: it tells that the connection is alive."""
DONE = "data: [DONE]\n\n"


def event(value: Any) -> str:
    """Return an event whose data is JSON."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


class SseResponse(StreamingResponse):
    """Sends events as they come, and closes what they need however the response ends.

    Parameters
    ----------
    events : async iterator of str
    stack : AsyncExitStack
        Closed at the end, also where the client is gone before the first event.
    """

    def __init__(self, events: AsyncIterator[str], stack: AsyncExitStack) -> None:
        # Nothing on the way may keep or join events.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()
