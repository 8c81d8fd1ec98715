"""Requests to a server with OpenAI's API, by the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tinychat.errors import ServerError

ALLOW_PLAIN_HTTP = "TINYCHAT_PLAIN_HTTP"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_CONNECT_SECONDS = 10.0
# Servers of others are silent while they read a long prompt.
_SILENT_SECONDS = 1800.0
_LONGEST_ANSWER = 32 << 20
_LONGEST_MESSAGE = 500


class Api:
    """An address of a server, such as ``http://127.0.0.1:8080/v1``, and the key that it wants.

    Without a path the address gets ``/v1``. `ServerError` if it is none, or not encrypted and not of this machine.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            raise ServerError(f"{url[:100]!r} is no address: give one such as http://127.0.0.1:8080") from None
        if parts.scheme not in ("http", "https") or not self._host or not url.isprintable():
            raise ServerError(f"{url[:100]!r} is no address: give one such as http://127.0.0.1:8080")
        if parts.scheme == "http" and self._host not in _LOCAL_NAMES and os.environ.get(ALLOW_PLAIN_HTTP) != "1":
            raise ServerError(
                f"{url[:100]} is not encrypted, so anybody on the way could read it: use https, or set "
                f"{ALLOW_PLAIN_HTTP}=1 to take that risk"
            )
        self._is_encrypted = parts.scheme == "https"
        self._path = parts.path.rstrip("/") or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        if not all(value.isascii() and value.isprintable() for value in self._headers.values()):
            raise ServerError("the API key has characters that no header can have")

    def get(self, path: str) -> Any:
        """Return the JSON of a resource; errors are those of `send`."""
        with self.send("GET", path) as answer:
            return answer.json()

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> ServerAnswer:
        """Send a request and return its answer, whose body is not read yet.

        `ServerError` if the server does not answer, or refuses: with its own message.
        """
        connection = self._connection()
        try:
            connection.connect()
            connection.sock.settimeout(_SILENT_SECONDS)
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, data, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or error or type(error).__name__
            raise ServerError(f"{self.url} does not answer ({reason}): start a server with tinychat serve") from None
        except BaseException:
            connection.close()
            raise
        answer = ServerAnswer(self.url, connection, response)
        if response.status != 200:
            with answer:
                raise ServerError(f"{self.url} refuses: {answer.problem()}")
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        if self._is_encrypted:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_SECONDS, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_SECONDS)


def sendable(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return messages as JSON can have them: images as data: URLs."""
    if not any(isinstance(message.get("content"), list) for message in messages):
        return [*messages]
    # Imported here: it needs numpy.
    from tinychat.images.data_url import with_data_urls

    return with_data_urls(messages)


class ServerAnswer:
    """The answer to a request; leaving its context ends the request, also in the middle."""

    def __init__(self, url: str, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._url, self._connection, self._response = url, connection, response

    def __enter__(self) -> ServerAnswer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def abort(self) -> None:
        """End the request from another thread: who waits for the answer gets a `ServerError`."""
        with suppress(OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the request."""
        self._response.close()
        self._connection.close()

    def json(self) -> Any:
        """Return the whole body, as JSON."""
        return self._parsed(self._read(self._response.read))

    def problem(self) -> str:
        """Return the message of an error, in one line."""
        try:
            message = self.json()["error"]["message"]
        except (ServerError, KeyError, TypeError, IndexError):
            message = self._response.reason
        return f"{' '.join(str(message).split())[:_LONGEST_MESSAGE]} ({self._response.status})"

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream as they come.

        `ServerError` if the stream breaks off, is no stream of events, or tells of an error.
        """
        while line := self._read(self._response.readline):
            name, _, data = line.partition(b":")
            if name != b"data":
                continue
            if data.strip() == b"[DONE]":
                return
            event = self._parsed(data)
            if not isinstance(event, dict):
                raise ServerError(f"{self._url} sends an event that is no object")
            if (error := event.get("error")) is not None:
                message = error.get("message") if isinstance(error, dict) else error
                raise ServerError(f"{self._url} fails: {' '.join(str(message).split())[:_LONGEST_MESSAGE]}")
            yield event
        raise ServerError(f"{self._url} broke off in the middle of a reply")

    def _read(self, read: Any) -> bytes:
        try:
            data: bytes = read(_LONGEST_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self._url} broke off ({type(error).__name__})") from None
        if len(data) > _LONGEST_ANSWER:
            raise ServerError(f"{self._url} sends more than {_LONGEST_ANSWER >> 20} MiB at once")
        return data

    def _parsed(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ServerError(f"{self._url} sends what is no JSON: is it a server of models?") from None
