"""The response that is sent while it is written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class StreamedResponse(StreamingResponse):
    """Sends events as they come, and closes what they need however the response ends.

    `stack` is closed at the end, also where the client is gone before the first event.
    """

    def __init__(self, events: AsyncIterator[str], media_type: str, stack: AsyncExitStack) -> None:
        # Nothing on the way may keep or join events.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type=media_type, headers=headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stack.aclose()
