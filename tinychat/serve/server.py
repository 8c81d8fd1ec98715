"""The state that the endpoints share: the models, the queue and the counters of a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest

from tinychat.serve.admission import Admission, Turn
from tinychat.serve.api_error import ApiError
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import Load, ModelPool, ServedModel
from tinychat.serve.slots import closest, missed

if TYPE_CHECKING:
    from tinychat.generate.stream import Stream

Pull = Callable[[str, Callable[[int, int], None]], tuple[Load, Path]]
"""Downloads the model of a name, with a progress that is called with (done, total); returns its loader and folder."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server is run; `tinychat serve --help` describes them."""

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = ()
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    parallel: int = 16
    most_waiting: int = 256
    most_loaded: int = 1
    idle_seconds: float | None = None
    ping_seconds: float = 15.0
    shutdown_seconds: float = 30.0
    alias: str | None = None
    slot_folder: Path | None = None
    shows_slots: bool = True
    shows_metrics: bool = True
    loads_first: bool = True
    cache_disk: int = 0
    shares_prefixes: bool = True
    paths: Mapping[str, Path] = field(default_factory=dict)
    pull: Pull | None = None
    opens_page: bool = False


@dataclass
class Server:
    """The state of a running server."""

    pool: ModelPool
    admission: Admission
    metrics: Metrics
    options: ServerOptions = field(default_factory=ServerOptions)
    log: Callable[[str], object] = lambda line: None  # takes lines for who runs the server
    is_pulling: bool = False  # whether a model is being downloaded
    is_ending: bool = False  # whether new requests are refused
    has_ended: bool = False  # whether those that wait for a turn are refused, too

    def __post_init__(self) -> None:
        self.started = int(time())
        self._tasks = count()

    def end_replies(self) -> None:
        """End what is being written; requests that wait are refused."""
        self.has_ended = True
        for served in self.pool.loaded:
            served.model.driver.cancel_all()

    def shown_name(self, served: ServedModel) -> str:
        """Return the name of a model in answers."""
        return self.options.alias or served.name

    @asynccontextmanager
    async def use(self, model: object) -> AsyncIterator[ServedModel]:
        """Hold a model; `TinychatError` if the server is ending, there is no such model, or it cannot be loaded."""
        if self.is_ending:
            raise _ending()
        async with self.pool.use(model) as served:
            yield served

    @asynccontextmanager
    async def turn(
        self, client: str, model: str, streams: Sequence[Stream], number: int | None = None
    ) -> AsyncIterator[Turn]:
        """Wait for a turn of a client, hold it while its replies are written, and count them.

        `ApiError` if the queue is full, or the server has ended.
        """
        async with self.admission.turn(client, number) as turn:
            if self.has_ended:
                raise _ending()
            previous = closest(self.admission.slots, model, streams[0].reply.prompt.ids) if streams else ()
            task = next(self._tasks)
            turn.slot.begin(task, model, streams)
            try:
                yield turn
            finally:
                for stream in streams:
                    self.metrics.add(stream.summary)
                if streams and (miss := missed(previous, streams[0])) is not None:
                    self.log(f"request {task}: {miss}")


def _ending() -> ApiError:
    return ApiError(503, "the server is ending", "server_error", code="ending", retry_after=30)


def client_of(request: HttpRequest) -> str:
    """Return the identity of a client: the key that they send, else their address."""
    return request.headers.get("authorization") or (request.client.host if request.client else "")
