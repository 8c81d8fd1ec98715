"""A connection to a server that runs on this machine, over its stdin and stdout."""

from __future__ import annotations

import queue
import threading
from itertools import count

from tinychat.errors import McpError, McpRefusedError
from tinychat.json_file import one_line
from tinychat.mcp.connection import PROGRESS, Connection, Wait
from tinychat.mcp.process import ServerProcess
from tinychat.mcp.protocol import (
    HANDSHAKE_VERSIONS,
    METHOD_NOT_FOUND,
    STATELESS_VERSION,
    UNSUPPORTED_VERSION,
    Json,
    client_info,
    message_line,
    parse_line,
    peer_of,
    stateless_meta,
)
from tinychat.mcp.server_settings import ServerSettings

# A server of the handshake may pass over a question before it; one that only starts slowly is asked again.
_PROBE_SECONDS = 5.0
_NEGOTIATION = ("initialize", "server/discover")
_LONGEST_REASON = 500
_KNOWN = ", ".join((*HANDSHAKE_VERSIONS, STATELESS_VERSION))


def connect(settings: ServerSettings) -> StdioConnection:
    """Start a server, and agree on a version of the protocol.

    Several servers of earlier versions end when they are asked for the newest: they are started once more.

    `McpError` if it cannot be started, ends, does not answer in time, or speaks none of the versions that are known.
    """
    connection = StdioConnection(settings)
    try:
        try:
            if connection.discover():
                return connection
        except McpError:
            if not connection.has_ended:
                raise
            connection.close()
            connection = StdioConnection(settings)
        connection.initialize()
    except BaseException:
        connection.close()
        raise
    return connection


class StdioConnection(Connection):
    """A server process and the requests that it has not answered yet."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings.name)
        self._seconds = settings.timeout
        self._is_stateless = False
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Json | None]] = {}
        self._process = ServerProcess(settings)
        self._process.listen(self._receive, self._note_end)

    def close(self) -> None:
        """End the server and all that it has started."""
        self._process.close()

    def request(self, method: str, params: Json, wait: Wait) -> Json:
        """Return the result of a request."""
        number = next(self._numbers)
        meta = stateless_meta() if self._is_stateless else {}
        if wait.has_progress:
            meta["progressToken"] = number
        match self._exchange(number, method, params | ({"_meta": meta} if meta else {}), wait):
            case {"error": {"code": int() as code, **rest}}:
                message = one_line(str(rest.get("message", "")), _LONGEST_REASON) or f"error {code}"
                raise McpRefusedError(f"the MCP server {self.name} refuses {method}: {message}", code, rest.get("data"))
            case {"result": dict() as result}:
                if result.get("resultType", "complete") == "complete":
                    return result
                raise self._error(f"answers {method} by a question of its own, and tinychat answers none")
        raise self._error(f"answers {method} by what is no result")

    def discover(self) -> bool:
        """Ask a server without a handshake what it is; return False if it has one.

        `McpError` if the server ends, or speaks none of the versions that are known.
        """
        self._is_stateless = True
        try:
            found = self.request("server/discover", {}, Wait(min(_PROBE_SECONDS, self._seconds)))
            spoken = found.get("supportedVersions")
        except McpRefusedError as error:
            spoken = _supported(error)
            if spoken and not {STATELESS_VERSION, *HANDSHAKE_VERSIONS} & {*spoken}:
                raise self._error(f"speaks {one_line(', '.join(spoken))}, and tinychat {_KNOWN}") from None
            spoken = None
        except McpError:
            if self._end:
                raise
            spoken = None
        self._is_stateless = isinstance(spoken, list) and STATELESS_VERSION in spoken
        if self._is_stateless:
            self.peer = peer_of(found, STATELESS_VERSION)
            self._listen()
        return self._is_stateless

    def initialize(self) -> None:
        """Shake hands with a server of an earlier version; `McpError` if that fails."""
        params = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "capabilities": {}, "clientInfo": client_info()}
        try:
            result = self.request("initialize", params, Wait(self._seconds))
        except McpRefusedError as error:
            # It started too slowly for the first question, and has answered it meanwhile.
            if error.code == UNSUPPORTED_VERSION and STATELESS_VERSION in _supported(error) and self.discover():
                return
            raise
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_VERSIONS:
            raise self._error(f"speaks {one_line(str(version))}, and tinychat {_KNOWN}")
        self.peer = peer_of(result, str(version))
        self._process.send(message_line({"method": "notifications/initialized"}))

    def _listen(self) -> None:
        """Ask a server without a handshake to tell changes of its lists; its answer comes when it ends."""
        if wanted := {f"{kind}ListChanged": True for kind in self.peer.changing}:
            params = {"notifications": wanted, "_meta": stateless_meta()}
            self._send(next(self._numbers), "subscriptions/listen", params)

    def _exchange(self, number: int, method: str, params: Json, wait: Wait) -> Json:
        """Send a request and return the message that answers it."""
        answers: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        with self._lock:
            self._waiting[number] = answers
            if self._end:
                answers.put(None)
        try:
            if not self._send(number, method, params):
                raise self._error("does not read what it is sent")
            message = self._answer(method, answers, wait)
        except BaseException:
            # Ctrl-C, too: nobody waits for it any more.
            if not self._end and method not in _NEGOTIATION:
                self._process.send(message_line({"method": "notifications/cancelled", "params": {"requestId": number}}))
            raise
        finally:
            with self._lock:
                del self._waiting[number]
        if message is None:
            raise self._error(f"is gone: {self._end}")
        return message

    def _send(self, number: int, method: str, params: Json) -> bool:
        """Send a request; return False if the server does not read."""
        return self._process.send(message_line({"id": number, "method": method, "params": params}))

    def _error(self, problem: str) -> McpError:
        log = f" (log: {self._process.log.path})" if self._process.log.path else ""
        return super()._error(f"{problem}{log}")

    def _receive(self, line: bytes) -> None:
        """Pass on the messages of a line; called by the thread that reads."""
        messages = parse_line(line)
        if messages is None:
            # Programs print where they should not.
            self._process.log.write(b"stdout: " + line)
        for message in messages or ():
            match message:
                case {"method": "ping", "id": int() | str() as number}:
                    self._process.send(message_line({"id": number, "result": {}}))
                case {"method": str() as method, "id": int() | str() as number}:
                    reason = f"{one_line(method)} is not known to this client"
                    error = {"code": METHOD_NOT_FOUND, "message": reason}
                    self._process.send(message_line({"id": number, "error": error}))
                case {"method": "notifications/progress", "params": {"progressToken": int() as number}}:
                    self._put(number, PROGRESS)
                case {"method": str() as method}:
                    self.changes.note(method)
                case {"id": int() as number}:
                    self._put(number, message)

    def _put(self, number: int, message: Json) -> None:
        with self._lock:
            # What comes too late has nobody who waits.
            if number in self._waiting:
                self._waiting[number].put(message)

    def _note_end(self, reason: str) -> None:
        with self._lock:
            self._end = reason
            for answers in self._waiting.values():
                answers.put(None)


def _supported(error: McpRefusedError) -> list[str]:
    """Return the versions that an error names."""
    found = error.data.get("supported") if isinstance(error.data, dict) else None
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
