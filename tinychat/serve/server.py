"""What the endpoints share: the models, the queue and the counters of a running server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import time

from starlette.requests import Request as HttpRequest

from tinychat.serve.admission import Admission
from tinychat.serve.api_error import ApiError
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import ModelPool, ServedModel


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
    is_ending : bool
        Whether new requests are refused.
    """

    pool: ModelPool
    admission: Admission
    metrics: Metrics
    ping_seconds: float = 15.0
    alias: str | None = None
    is_ending: bool = False

    def __post_init__(self) -> None:
        self.started = int(time())

    def shown_name(self, served: ServedModel) -> str:
        """Return the name of a model in answers."""
        return self.alias or served.name

    @asynccontextmanager
    async def use(self, model: object) -> AsyncIterator[ServedModel]:
        """Hold a model.

        Raises
        ------
        ApiError
            If the server is ending, there is no such model, or it cannot be loaded.
        """
        if self.is_ending:
            raise ApiError(503, "the server is ending", "server_error", code="ending", retry_after=30)
        async with self.pool.use(model) as served:
            yield served


def client_of(request: HttpRequest) -> str:
    """Return what tells clients apart: the key that they send, else their address."""
    return request.headers.get("authorization") or (request.client.host if request.client else "")
