"""The door of the server: which hosts, origins and keys are let in.

A page of the web that a browser shows can send requests to this machine, under a name that it lets point here (DNS
rebinding). So the Host header must name this machine, and an Origin must be allowed, or be that of our own page.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tinychat.serve.api_error import ApiError
from tinychat.serve.page import PATHS
from tinychat.serve.wire import wire_of

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
# What a monitor may ask without a key, and the page, which asks its user for one.
_OPEN_PATHS = frozenset({"/health", "/v1/health", *PATHS})


@dataclass(frozen=True)
class Door:
    """Who is let in."""

    hosts: Collection[str] = LOCAL_NAMES  # names in the Host header, in lower case and without a port; "*" for all
    origins: Collection[str] = ()  # of pages that may read answers, such as "http://localhost:3000"; "*" for all
    keys: tuple[str, ...] = ()  # any of them opens; without any, everybody is let in

    def check(self, path: str, headers: Headers) -> None:
        """Refuse, by an `ApiError`, a request that may not come in."""
        host = headers.get("host", "")
        if "*" not in self.hosts and not self._is_named(host):
            raise ApiError(403, "this Host is not served: allow it with --allow-host", code="host_refused")
        origin = headers.get("origin")
        is_allowed = "*" in self.origins or origin in self.origins
        if origin is not None and not (is_allowed or self._is_own(origin, headers)):
            raise ApiError(403, "this Origin is not allowed: allow it with --cors", code="origin_refused")
        if self.keys and path not in _OPEN_PATHS and not self._has_key(headers):
            raise ApiError(401, "the API key is missing or wrong", "authentication_error", code="invalid_api_key")

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Return whether an origin is this server's, under a name that is meant for it.

        A name that is served only because all are (`*`) may be one that a page of the web lets point here: then a key
        must tell the user from it.
        """
        host = headers.get("host", "").lower()
        is_meant = bool(self.keys) or self._is_named(host)
        return is_meant and origin.lower() in (f"http://{host}", f"https://{host}")

    def _is_named(self, host: str) -> bool:
        """Return whether a Host header has one of the names, or an address."""
        name = _host_name(host)
        return name in self.hosts or _is_address(name)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").strip().partition(" ")
        given = (token if scheme.lower() == "bearer" else scheme).strip() or headers.get("x-api-key", "")
        # All are compared, each in constant time: the time tells nothing of a key.
        return sum(hmac.compare_digest(given.encode(), key.encode()) for key in self.keys) > 0


def _is_address(host: str) -> bool:
    """Return whether a host is an address: no name that a page of the web could let point here."""
    try:
        return "%" not in host and bool(ip_address(host))
    except ValueError:
        return False


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """ASGI middleware: answers what `Door.check` refuses."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            try:
                self._door.check(scope["path"], headers)
            except ApiError as error:
                app = JSONResponse(wire_of(scope["path"], headers).error(error), error.status)
        await app(scope, receive, send)
