"""tinychat on Ray: actors that answer the rows of a dataset, and replicas of the server.

    rows.map_batches(RowActor, batch_format="pyarrow", fn_constructor_args=["MODEL"], num_cpus=4)
    serve.run(server_deployment("MODEL", replicas=2, cpus=4))

Actors of one machine map the same weights and load the same compiled kernels, and each has cores of its own.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow
import ray

from tinychat.rows.answerer import RowAnswerer
from tinychat.rows.result_columns import COLUMNS

if TYPE_CHECKING:
    from ray import serve
    from starlette.applications import Starlette

    from tinychat.serve.server import ServerOptions

_LOG = logging.getLogger("ray.serve")
_TYPES = {str: pyarrow.string(), int: pyarrow.int64()}


class RowActor:
    """Answers batches of a Ray dataset, for `map_batches`: parameters and errors are those of `tinychat.RowAnswerer`.

    `cores` are those of the actor, `num_cpus` of `map_batches`, when omitted. The model is loaded once, as the actor
    starts.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self._answerer = RowAnswerer(model, **{"cores": _own_cpus(), **settings})
        _ = self._answerer.model

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Return a batch with the columns of the answers."""
        if not isinstance(batch, pyarrow.Table):
            raise TypeError('RowActor takes tables of Arrow: give batch_format="pyarrow" to map_batches')
        answered = self._answerer.answer(batch.to_pylist())
        for name, kind in COLUMNS.items():
            batch = batch.append_column(name, pyarrow.array([row[name] for row in answered], _TYPES[kind]))
        return batch


def server_deployment(
    model: str | os.PathLike[str] | None = None,
    *,
    options: ServerOptions | None = None,
    replicas: int = 1,
    cpus: int = 1,
    **settings: Any,
) -> serve.Application:
    """Return an application of Ray Serve: replicas of the server of `tinychat serve`.

    Parameters
    ----------
    model : str or path, optional
        As for `tinychat.load`; the default model when omitted.
    options : ServerOptions, optional
        Keys, names of hosts that are served, and limits; `host` and `port` are those of Ray Serve.
    replicas, cpus : int
        How many servers there are, and the cores of each.
    **settings
        As for `tinychat.RowAnswerer`: loading, and replies where a request says nothing else.
    """
    # Imported here: actors that answer rows have no memory for a server.
    from ray import serve

    from tinychat.serve.running import create_server
    from tinychat.serve.server import ServerOptions

    # Ray Serve ends replicas that are not needed.
    chosen = replace(options or ServerOptions(), idle_seconds=None)
    # Checked here: in a replica, an error would only be in its log.
    answerer = RowAnswerer(model, cores=cpus, **settings)

    def create_replica() -> Starlette:
        loaded = answerer.model
        return create_server({loaded.name: lambda: (loaded, answerer.request)}, chosen, _LOG.info)[1]

    deployed = serve.deployment(
        serve.ingress(create_replica)(),
        name="tinychat",
        num_replicas=replicas,
        max_ongoing_requests=chosen.parallel + chosen.most_waiting,
        ray_actor_options={"num_cpus": cpus},
    )
    return deployed.bind()


def _own_cpus() -> int:
    """Return the cores that Ray has given to this actor, one at least."""
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
