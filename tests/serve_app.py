"""A server in this process for tests: on the demo model or a fake one, over sockets or without."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import uvicorn

from tinychat.generate.request import Request
from tinychat.serve.admission import Admission
from tinychat.serve.app import create_app
from tinychat.serve.guard import Door
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import ModelPool
from tinychat.serve.server import Server

DEFAULTS = Request(temperature=0.0)


def new_server(*models, parallel=4, most_waiting=8, defaults=DEFAULTS, **options):
    """Return the state of a server of models, and its application."""
    loads = {model.name: (lambda model=model: (model, defaults)) for model in models}
    pool = ModelPool(loads, most_loaded=len(models))
    return Server(pool, Admission(parallel, most_waiting), Metrics(), **options)


def keep_open(server):
    """Leave the models open when the server ends."""

    async def keep():
        pass

    server.pool.close = keep


@contextmanager
def listening(server, door=None):
    """Serve at a free port in a thread; yield the port. The models stay open."""
    keep_open(server)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(server, door or Door()), log_level="warning", timeout_graceful_shutdown=5)
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(runner.serve(sockets=[listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        runner.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def events_of(text):
    """Return the data of server-sent events: objects, and DONE as it is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]
