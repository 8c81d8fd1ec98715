"""The settings of the replies of a conversation, and their origins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tinychat.generate.precedence import Resolved
from tinychat.generate.request import Request
from tinychat.generate.thinking import Thinking
from tinychat.settings import SEEDS

SET_HERE, SYSTEM_HERE, SAVED = "/set", "/system", "this conversation"
"""Origins of settings that another model does not change."""


class RequestState:
    """The request for each next reply, whose seed grows from one to the next.

    `origins` are those of the settings by name, in words, defaults left out; `standing` has the settings that hold
    where nothing was set in this conversation. `earlier` has the values by name that the model was loaded with, of
    settings that were changed since.
    """

    def __init__(self, request: Request) -> None:
        self.request: Request = request
        self.origins: dict[str, str] = {}
        self.thinking: Thinking = Thinking()
        self.standing: Resolved = Resolved({}, {})
        self.earlier: dict[str, object] = {}
        self._written = self._seeded_since = 0

    def seed(self) -> None:
        """Let the next reply use the seed of `request` itself, and later ones those after it."""
        self._seeded_since = self._written

    @contextmanager
    def using(self, request: Request) -> Iterator[None]:
        """Write replies by another request within a block; its seed, if it has one, is used as it is given."""
        default, since = self.request, self._seeded_since
        self.request = request
        if request.seed != default.seed:
            self.seed()
        try:
            yield
        finally:
            self.request, self._seeded_since = default, since

    def adopt(self, found: Resolved) -> None:
        """Adopt settings, except those set in this conversation."""
        self.standing = found
        own = {name: origin for name, origin in self.origins.items() if self.was_set(name)}
        values = {name: getattr(self.request, name) for name in own if hasattr(self.request, name)}
        self.request = replace(found.request, **values)
        if "think" not in own:
            self.thinking = found.thinking
        self.origins = {**found.origins, **own}

    def was_set(self, name: str) -> bool:
        """Return whether a setting was changed in this conversation."""
        return self.origins.get(name) in (SET_HERE, SYSTEM_HERE, SAVED)

    def next_request(self) -> Request:
        """Return the request of the next reply."""
        request = replace(self.request, think_budget=self.thinking.budget)
        if request.seed is None:
            return request
        return replace(request, seed=(request.seed + self._written - self._seeded_since) % SEEDS)
