"""Messages of the Model Context Protocol: JSON-RPC 2.0, one message a line.

Versions up to 2025-11-25 begin with a handshake (``initialize``). 2026-07-28 has none: each request carries the version
and the client's capabilities in ``_meta`` (https://modelcontextprotocol.io/specification).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from tinychat.json_file import one_line
from tinychat.text.guard import well_formed_data

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSION = "2026-07-28"
METHOD_NOT_FOUND = -32601
UNSUPPORTED_VERSION = -32022
KINDS = ("tools", "resources", "prompts")
"""A kind of offer of a server, each with a list that may change."""

_META = "io.modelcontextprotocol/"
_LONGEST_NAME = 100

Json = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A server as it introduces itself; all of it is its own word."""

    version: str
    name: str = ""
    release: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    def offers(self, kind: str) -> bool:
        """Return whether the server has a list of this kind."""
        return isinstance(self.capabilities.get(kind), dict)

    @property
    def changing(self) -> tuple[str, ...]:
        """The kinds whose lists the server tells changes of."""
        found = {kind: self.capabilities.get(kind) for kind in KINDS}
        return tuple(kind for kind, one in found.items() if isinstance(one, dict) and one.get("listChanged") is True)


class Changes:
    """The lists of a server that have changed since somebody looked. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: set[str] = set()

    def note(self, method: str) -> None:
        """Note a notification, if it is one of a change."""
        with self._lock:
            self._kinds |= {kind for kind in KINDS if method == f"notifications/{kind}/list_changed"}

    def take(self, kind: str) -> bool:
        """Return whether a list of one of the `KINDS` has changed since this was last asked."""
        with self._lock:
            is_changed = kind in self._kinds
            self._kinds.discard(kind)
        return is_changed


def message_line(message: Json) -> bytes:
    """Return the line of a message: a request, a notification or an answer."""
    return json.dumps({"jsonrpc": "2.0"} | message, separators=(",", ":")).encode() + b"\n"


def parse_line(line: bytes) -> list[Json] | None:
    """Return the messages of a line, several if it is a batch (2025-03-26); None if it is no JSON.

    A half of a surrogate pair, which JSON can spell but no text in UTF-8 can hold, becomes U+FFFD.
    """
    try:
        value = json.loads(line)
        if b"\\u" in line:
            value = well_formed_data(value)
    except (ValueError, RecursionError):
        return None
    found = value if isinstance(value, list) else [value]
    return [message for message in found if isinstance(message, dict)]


def client_info() -> Json:
    """Return how this client introduces itself."""
    return {"name": "tinychat", "version": version("tinychat")}


def stateless_meta() -> Json:
    """Return the ``_meta`` of each request of 2026-07-28."""
    return {
        f"{_META}protocolVersion": STATELESS_VERSION,
        f"{_META}clientInfo": client_info(),
        f"{_META}clientCapabilities": {},
    }


def peer_of(result: Json, spoken: str) -> Peer:
    """Return the server that an answer to ``initialize`` or ``server/discover`` describes."""
    meta = result.get("_meta")
    stamp = meta.get(f"{_META}serverInfo") if isinstance(meta, dict) else None
    info = result.get("serverInfo", stamp)
    info = info if isinstance(info, dict) else {}
    capabilities = result.get("capabilities")
    return Peer(
        spoken,
        name=one_line(str(info.get("name", "")), _LONGEST_NAME),
        release=one_line(str(info.get("version", "")), _LONGEST_NAME),
        capabilities=capabilities if isinstance(capabilities, dict) else {},
    )
