"""The state that the endpoints share: the models, the queue and the counters of a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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


@dataclass
class Server:
    """The state of a running server.

    Attributes
    ----------
    pool : ModelPool
    admission : Admission
    metrics : Metrics
    ping_seconds : float
        Silence after which a stream gets a comment.
    alias : str, optional
        The name of the model in answers, instead of its own.
    slot_folder : Path, optional
        Where prompts' caches are saved on request; without it they cannot be.
    shows_slots, shows_metrics : bool
        Whether ``/slots`` and ``/metrics`` are served.
    log : callable
        Takes lines for who runs the server.
    pull : callable, optional
        Gets models that clients ask for; without it they cannot.
    is_pulling : bool
        Whether one is being downloaded.
    is_ending : bool
        Whether new requests are refused.
    has_ended : bool
        Whether those that wait for a turn are refused, too.
    """

    pool: ModelPool
    admission: Admission
    metrics: Metrics
    ping_seconds: float = 15.0
    alias: str | None = None
    slot_folder: Path | None = None
    shows_slots: bool = True
    shows_metrics: bool = True
    log: Callable[[str], object] = lambda line: None
    pull: Pull | None = None
    is_pulling: bool = False
    is_ending: bool = False
    has_ended: bool = False

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
        return self.alias or served.name

    @asynccontextmanager
    async def use(self, model: object) -> AsyncIterator[ServedModel]:
        """Hold a model.

        Raises
        ------
        TinychatError
            If the server is ending, there is no such model, or it cannot be loaded.
        """
        if self.is_ending:
            raise _ending()
        async with self.pool.use(model) as served:
            yield served

    @asynccontextmanager
    async def turn(
        self, client: str, model: str, streams: Sequence[Stream], number: int | None = None
    ) -> AsyncIterator[Turn]:
        """Wait for a turn of a client, hold it while its replies are written, and count them.

        Raises
        ------
        ApiError
            If the queue is full, or the server has ended.
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
