"""What a hub may answer: names that stay in their folder, over connections that nobody in between can change.

The hub's client makes paths of three headers, and writes files to them without looking.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tinychat.errors import HubError
from tinychat.json_file import one_line

ALLOW_PLAIN_HTTP = "TINYCHAT_PLAIN_HTTP"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# The client takes the first of these that is there for the name of the file.
_ENTITY_TAGS = ("X-Linked-Etag", "ETag")
_COMMIT = "X-Repo-Commit"


@contextmanager
def checked_answers() -> Iterator[None]:
    """Check each request and each answer of the hub's client inside the block, those after a redirect too.

    A `HubError` is raised inside the client for the first that is not as it must be.
    """
    # Imported here: it takes a while.
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    # Whoever uses this package may have set one of their own, for a proxy perhaps.
    previous = _http._GLOBAL_CLIENT_FACTORY

    def checking_client() -> Any:
        client = previous()
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [_check_request, *hooks.get("request", [])],
            "response": [_check_answer, *hooks.get("response", [])],
        }
        return client

    set_client_factory(checking_client)
    try:
        yield
    finally:
        set_client_factory(previous)


def check_file_name(name: str) -> None:
    """Refuse the name of a file in a listing that could leave its folder, or write on a terminal.

    Raises
    ------
    HubError
    """
    parts = name.split("/")
    leaves = any(part in ("", ".", "..") for part in parts) or "\\" in name or ":" in parts[0]
    if leaves or not name.isprintable():
        raise HubError(f"the hub lists a file of the name {one_line(name, 60)!r}, which no file can have; refused")


def _check_request(request: Any) -> None:
    url = request.url
    if url.scheme == "https" or _is_loopback(url.host) or os.environ.get(ALLOW_PLAIN_HTTP) == "1":
        return
    raise HubError(
        f"{one_line(f'{url.scheme}://{url.host}')} is not encrypted, so anybody on the way could change the model; "
        f"use https, or set {ALLOW_PLAIN_HTTP}=1 to take that risk"
    )


def _check_answer(response: Any) -> None:
    """Check the headers that become names: on what `HEAD` says of a file, and a commit wherever it stands.

    Other answers, as that of a content network after a redirect, may have any entity tag.
    """
    headers, names = response.headers, [_COMMIT]
    if response.request.method == "HEAD" and response.status_code < 400:
        names.append(next((tag for tag in _ENTITY_TAGS if headers.get(tag)), _COMMIT))
    for name in names:
        value = headers.get(name)
        if value is not None and not _is_name(value.removeprefix("W/").strip('"')):
            raise HubError(
                f"{one_line(response.url.host)} answered with {name}: {one_line(value, 60)}, which no hub does; "
                "refused: check HF_ENDPOINT and the network"
            )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and ".." not in text and text != "."


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
