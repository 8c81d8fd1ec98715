"""The models of a server by name: loaded on demand, unloaded when idle, never under a running reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from tinychat.serve.api_error import unknown_model

if TYPE_CHECKING:
    from pathlib import Path

    from tinychat.generate.model import Model
    from tinychat.generate.request import Request


@dataclass
class ServedModel:
    """A loaded model, and how its replies are written where a request says nothing else.

    `idle_seconds` is how long it stays unused, which a request may change: 0 unloads it behind its last user.
    """

    name: str
    model: Model
    defaults: Request
    users: int = 0
    used_at: float = field(default_factory=monotonic)
    idle_seconds: float = inf

    @property
    def is_due(self) -> bool:
        """Whether nobody has used it for so long that it is to be unloaded."""
        return not self.users and monotonic() - self.used_at >= self.idle_seconds


Load = Callable[[], tuple["Model", "Request"]]
"""Loads a model; returns it with the defaults of its requests."""


class ModelPool:
    """Loads models by name and keeps those that were used last.

    Parameters
    ----------
    models : mapping of str to Load
        What is served. Where there is one model only, a request may give it any name.
    most_loaded : int
        Models in memory at once; one more waits until another is idle.
    idle_seconds : float, optional
        How long an unused model stays; for ever when omitted.
    on_load, on_unload : callable, optional
        Called with each model, in a thread, after it is loaded and before it is closed.
    paths : mapping of str to Path, optional
        Where models lie that are not loaded yet, as far as that is known.
    """

    def __init__(
        self,
        models: Mapping[str, Load],
        most_loaded: int = 1,
        idle_seconds: float | None = None,
        on_load: Callable[[Model], None] = lambda model: None,
        on_unload: Callable[[Model], None] = lambda model: None,
        paths: Mapping[str, Path] | None = None,
    ) -> None:
        self._models = dict(models)
        self._most_loaded = most_loaded
        self._idle_seconds = inf if idle_seconds is None else idle_seconds
        self._on_load, self._on_unload = on_load, on_unload
        self.paths = dict(paths or {})
        self._loaded: dict[str, ServedModel] = {}
        self._change = asyncio.Condition()
        self.loading: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Names of all models that are served."""
        return [*self._models]

    @property
    def loaded(self) -> list[ServedModel]:
        """Models in memory."""
        return [*self._loaded.values()]

    def add(self, name: str, load: Load, path: Path) -> None:
        """Serve one model more, unless there is one of this name."""
        if self._models.setdefault(name, load) is load:
            self.paths[name] = path

    def find(self, name: object) -> str:
        """Return the name under which a model is served that a client may name in another form, or ApiError."""
        for form in (name, plain_name(name)) if isinstance(name, str) else ():
            if form in self._models:
                return form
        raise unknown_model(name, self._models)

    @asynccontextmanager
    async def use(self, name: object) -> AsyncIterator[ServedModel]:
        """Hold a model, loading it first if need be; None names the first one.

        `ApiError` if it is not served; `TinychatError` if it cannot be loaded.
        """
        served = await self._hold(self._served_name(name))
        try:
            yield served
        finally:
            served.users -= 1
            served.used_at = monotonic()
            if served.idle_seconds == 0 and not served.users:
                await self._unload(served)
            async with self._change:
                self._change.notify_all()

    def _served_name(self, name: object) -> str:
        if name is None or len(self._models) == 1:
            return next(iter(self._models))
        return self.find(name)

    async def _hold(self, name: str) -> ServedModel:
        async with self._change:
            while name in self.loading or not (name in self._loaded or await self._has_room()):
                await self._change.wait()
            if name in self._loaded:
                self._loaded[name].users += 1
                return self._loaded[name]
            self.loading.add(name)
        try:
            model, defaults = await asyncio.to_thread(self._load, name)
        finally:
            async with self._change:
                self.loading.discard(name)
                self._change.notify_all()
        self.paths[name] = model.path
        served = self._loaded[name] = ServedModel(name, model, defaults, users=1, idle_seconds=self._idle_seconds)
        return served

    def _load(self, name: str) -> tuple[Model, Request]:
        model, defaults = self._models[name]()
        self._on_load(model)
        return model, defaults

    async def _has_room(self) -> bool:
        """Return whether one more model may be loaded, unloading the one that was idle longest."""
        if len(self._loaded) + len(self.loading) < self._most_loaded:
            return True
        idle = sorted((one for one in self._loaded.values() if not one.users), key=lambda one: one.used_at)
        if idle:
            await self._unload(idle[0])
        return bool(idle)

    async def _unload(self, served: ServedModel) -> None:
        if self._loaded.get(served.name) is served:
            del self._loaded[served.name]
            await asyncio.to_thread(self._close, served.model)

    def _close(self, model: Model) -> None:
        self._on_unload(model)
        model.close()

    async def unload_idle(self) -> None:
        """Unload models that nobody has used for their `idle_seconds`, until this is cancelled."""
        while True:
            await asyncio.sleep(min(self._idle_seconds, 1.0))
            for served in self.loaded:
                if served.is_due:
                    await self._unload(served)

    async def close(self) -> None:
        """End all replies and unload all models."""
        for served in self.loaded:
            await self._unload(served)


def plain_name(name: str) -> str:
    """Return our name of a model by one in Ollama's form, such as "library/NAME:latest"."""
    return name.removeprefix("registry.ollama.ai/").removeprefix("library/").removesuffix(":latest")
