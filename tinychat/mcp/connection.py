"""A connection to a server, and the wait for its answers: what the ways to a server share."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from time import monotonic

from tinychat.errors import McpError
from tinychat.mcp.protocol import Changes, Json, Peer

MOST_TURNS = 10
"""How often signs of progress may start the time limit of a request again."""
POLL_SECONDS = 0.05
"""How often who waits for an answer looks whether it is to stop."""
PROGRESS: Json = {"method": "notifications/progress"}
"""A sign of progress, which may come before an answer."""


@dataclass(frozen=True)
class Wait:
    """How long to wait for an answer."""

    seconds: float  # time limit
    stop: threading.Event | None = None  # ends the wait when it is set
    # Whether signs of progress start the time limit again, up to ten times as long in all.
    has_progress: bool = False


class Connection(ABC):
    """A server that answers requests, over whatever way. Any number of threads may use it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer = Peer("")  # the server as it introduces itself
        self.changes = Changes()  # its lists that have changed
        # Why no request can be answered any more.
        self._end = ""

    @property
    def has_ended(self) -> bool:
        """Whether no request can be answered any more."""
        return bool(self._end)

    @abstractmethod
    def request(self, method: str, params: Json, wait: Wait) -> Json:
        """Return the result of a request.

        `McpError` if the server ends, does not answer in time, or `wait` is stopped: then the server is told.
        `McpRefusedError` if the answer is an error.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection, and the server where it was started for it."""

    def _answer(self, method: str, messages: queue.SimpleQueue[Json | None], wait: Wait) -> Json | None:
        """Return the message that comes behind signs of progress, None for the end of the connection."""
        until = monotonic() + wait.seconds
        last = monotonic() + MOST_TURNS * wait.seconds
        while True:
            if wait.stop is not None and wait.stop.is_set():
                raise McpError(f"{method} of the MCP server {self.name} was stopped")
            try:
                message = messages.get(timeout=max(0.0, min(POLL_SECONDS, until - monotonic())))
            except queue.Empty:
                if monotonic() >= until:
                    raise self._error(f"did not answer {method} within {wait.seconds:g} s") from None
                continue
            if message is not PROGRESS:
                return message
            until = min(monotonic() + wait.seconds, last)

    def _error(self, problem: str) -> McpError:
        return McpError(f"the MCP server {self.name} {problem}")
