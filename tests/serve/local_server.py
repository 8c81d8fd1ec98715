"""A server in a thread of the test, at a free port."""

import asyncio
import http.client
import json
import socket
import threading
from contextlib import contextmanager

import numpy as np
import uvicorn

import tinychat
from tinychat.generate.request import Request
from tinychat.serve.admission import Admission
from tinychat.serve.app import create_app
from tinychat.serve.guard import Door
from tinychat.serve.metrics import Metrics
from tinychat.serve.model_pool import ModelPool
from tinychat.serve.prefix_files import PrefixFiles
from tinychat.serve.server import Server, ServerOptions

# As `tinychat serve` has them where nobody says otherwise: the most likely token, to the end of the context.
DEFAULTS = Request(temperature=0.0)


class LocalServer:
    """A running server: its address, and requests to it.

    Attributes
    ----------
    url : str
        With the version, as clients want it.
    state : Server
    """

    def __init__(self, port, state):
        self.port, self.url, self.state = port, f"http://127.0.0.1:{port}/v1", state

    def post(self, path, body, timeout=120.0):
        """Return the status and the object of an answer."""
        status, data = self.raw("POST", path, json.dumps(body), timeout)
        return status, json.loads(data)

    def chunks(self, path, body, timeout=120.0):
        """Return the objects of a stream."""
        status, data = self.raw("POST", path, json.dumps({**body, "stream": True}), timeout)
        assert status == 200, data
        lines = [line for line in data.decode().split("\n\n") if line and not line.startswith(":")]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def open(self, method, path, body, timeout=120.0):
        """Send a request; return its connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection

    def raw(self, method, path, body=None, timeout=120.0):
        """Return the status and the bytes of an answer."""
        connection = self.open(method, path, body, timeout)
        try:
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def new_server(*models, parallel=16, most_waiting=256, defaults=DEFAULTS, options=None, **others):
    """Return the state of a server of models by their names."""
    loads = {model.name: (lambda model=model: (model, defaults)) for model in models}
    pool, admission = ModelPool(loads, len(loads)), Admission(parallel, most_waiting)
    return Server(pool, admission, Metrics(), options or ServerOptions(), **others)


def in_process(state):
    """Return a client of a server in this process; its context starts and ends the server."""
    # Imported here: it needs a package that servers do not.
    from starlette.testclient import TestClient

    return TestClient(create_app(state, Door({"testserver"})))


def keep_open(state):
    """Leave the models open when the server ends."""

    async def keep():
        pass

    state.pool.close = keep


@contextmanager
def serving(model, defaults=DEFAULTS, name="demo", parallel=16, keys=(), cache_disk=0):
    """Serve a model; its prefixes are saved and it is closed at the end."""
    files = PrefixFiles(cache_disk)
    pool = ModelPool({name: lambda: (model, defaults)}, on_load=files.load, on_unload=files.save)
    with listening(Server(pool, Admission(parallel, 256), Metrics()), Door(keys=keys)) as running:
        yield running


@contextmanager
def listening(state, door=None, send_buffer=0):
    """Let a server listen at a free port; the system holds `send_buffer` bytes that clients do not read."""
    config = uvicorn.Config(create_app(state, door or Door()), log_level="warning", timeout_graceful_shutdown=5)
    runner = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        thread = threading.Thread(target=asyncio.run, args=(runner.serve(sockets=[listener]),))
        thread.start()
        try:
            yield LocalServer(listener.getsockname()[1], state)
        finally:
            runner.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


def events_of(text):
    """Return the data of server-sent events: objects, and the last one of OpenAI's as it is."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def demo(**options):
    """Return the demo model."""
    return tinychat.load("demo", **options)


def log_softmax(row):
    """Return the log-probabilities of a row of logits."""
    scores = row.astype(np.float64)
    scores -= scores.max()
    return scores - np.log(np.exp(scores).sum())
