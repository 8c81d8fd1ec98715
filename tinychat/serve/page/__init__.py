"""The page at ``/``: its files, which lie beside this module, and the headers that they are sent with.

The page is static: there is no build step, nothing of it comes from elsewhere, and its policy (CSP) lets nothing be
run, shown or asked that does not come from this server. What models write becomes nodes of text, never markup.
"""

from __future__ import annotations

import hashlib
from functools import cache, partial
from importlib.resources import files
from typing import NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SCRIPTS = (
    *("api", "app", "code", "composer", "dom", "exchange", "images", "inline", "markdown", "messages", "reply"),
    *("settings", "sidebar", "storage", "stream", "tree"),
)
_NAMES = ("icon.svg", "messages.css", "style.css", *(f"{name}.js" for name in _SCRIPTS))
PATHS = {"/": "index.html"} | {f"/page/{name}": name for name in _NAMES}
"""The files by their paths: a table, so that no path of a request becomes one of the disk."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked for again each time, and sent again only where it has changed: no page of one version has parts of another.
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page."""
    return [Route(path, partial(_send, name), methods=["GET"]) for path, name in PATHS.items()]


class _File(NamedTuple):
    data: bytes
    tag: str


@cache
def _read(name: str) -> _File:
    data = files(__name__).joinpath(name).read_bytes()
    return _File(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


async def _send(name: str, http: HttpRequest) -> Response:
    if http.url.path == "/" and "text/html" not in http.headers.get("accept", ""):
        # Programs that look for Ollama's API ask for these words.
        return PlainTextResponse("Ollama is running")
    file = _read(name)
    headers = _HEADERS | {"ETag": file.tag}
    if http.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
