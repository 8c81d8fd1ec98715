"""Clients that leave, wait, say nothing, or do not read: others get their replies, and nothing stays behind."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from fake_model import EOS, fake_model
from local_server import events_of, listening, new_server

from tinychat.generate.request import Request
from tinychat.serve.model_pool import ModelPool

SECONDS = 30


def endless(step_seconds=0.005, **options):
    """Return a model that writes for ever, each step taking so long."""
    steps = {"before_step": lambda _count: time.sleep(step_seconds)} if step_seconds else {}
    return fake_model(lambda _ids: 97, name="endless", context_size=1 << 16, **steps, **options)


@contextmanager
def served(model, send_buffer=0, **options):
    # The same letter for ever is no loop here.
    defaults = Request(temperature=0.0, loop_stop=False)
    with listening(new_server(model, defaults=defaults, **options), send_buffer=send_buffer) as running:
        yield running


def wait_until(is_so):
    """Wait until something is so, which takes some milliseconds."""
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.002)


def send(server, body, path="/completion", key=""):
    """Send a request and return its socket; nothing of the answer is read."""
    data = json.dumps({"prompt": "a", **body}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), SECONDS)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    connection.sendall(f"{head}\r\n".encode() + data)
    return connection


def read_all(connection):
    """Return the status and the rest of an answer whose connection is then closed."""
    with connection, connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = {}
        while line := file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        if "content-length" in headers:
            return status, headers, file.read(int(headers["content-length"])).decode()
        chunks = []
        while size := int(file.readline(), 16):
            chunks.append(file.read(size))
            file.readline()
        return status, headers, b"".join(chunks).decode()


def counts(server):
    """Return how many requests run, and how many wait."""
    return server.state.admission.running, server.state.admission.waiting


def is_idle(server, model):
    return (*counts(server), len(model.driver)) == (0, 0, 0)


def steps_after_drops(model):
    """Note how many steps there have been when a reply is dropped."""
    steps, noted, drop = model.sequence.steps, [], model.driver.drop

    def noting(run):
        noted.append(len(steps))
        drop(run)

    model.driver.drop = noting
    return steps, noted


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
def test_a_client_that_goes_away_frees_its_sequence_within_a_step(stream, leave):
    model = endless()
    with served(model) as server:
        steps, noted = steps_after_drops(model)
        connection = send(server, {"stream": stream})
        wait_until(lambda: len(steps) > 5)
        if leave == "half-close":
            connection.shutdown(socket.SHUT_WR)
        else:
            if leave == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        wait_until(lambda: is_idle(server, model))
        # The step that was being made, and none more.
        assert len(steps) <= noted[0] + 1
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(stream):
    model = endless()
    with served(model, parallel=1) as server:
        running = send(server, {})
        wait_until(lambda: server.state.admission.running == 1)
        waiting = send(server, {"stream": stream})
        wait_until(lambda: server.state.admission.waiting == 1)
        waiting.close()
        wait_until(lambda: server.state.admission.waiting == 0)
        assert server.state.admission.running == len(model.driver) == 1
        running.close()
        wait_until(lambda: is_idle(server, model))


def test_a_full_queue_refuses_at_once():
    model = endless()
    with served(model, parallel=1, most_waiting=1) as server:
        others = [send(server, {}), send(server, {"stream": True})]
        wait_until(lambda: server.state.admission.waiting == 1)
        for stream in (False, True):
            status, headers, text = read_all(send(server, {"stream": stream}))
            assert (status, json.loads(text)["error"]["code"]) == (503, "queue_full")
            assert int(headers["retry-after"]) > 0
        for connection in others:
            connection.close()
        wait_until(lambda: is_idle(server, model))


def test_clients_take_turns():
    model = fake_model(lambda _ids: 97, name="brief", before_step=lambda _count: time.sleep(0.002))
    ended = []

    def ask(server, key):
        assert read_all(send(server, {"n_predict": 20}, key=key))[0] == 200
        ended.append(key)

    with served(model, parallel=1) as server:
        threads = []
        for number, key in enumerate(["greedy"] * 5 + ["modest"]):
            threads.append(threading.Thread(target=ask, args=(server, key)))
            threads[-1].start()
            wait_until(lambda number=number: sum(counts(server)) + len(ended) > number)
        for thread in threads:
            thread.join(SECONDS)
    # One ran, and one of the same client's was next in the line.
    assert "modest" in ended[:3] and len(ended) == 6


def test_a_client_that_reads_nothing_holds_no_turn():
    model = fake_model(lambda ids: 97 if len(ids) < 4000 else EOS, name="wordy", context_size=1 << 13)
    with served(model, parallel=1, send_buffer=4096) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        data = json.dumps({"prompt": "a", "stream": True, "timings_per_token": True}).encode()
        slow.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        wait_until(lambda: server.state.admission.running == 1)
        status, _, text = read_all(send(server, {"n_predict": 3}))
        assert (status, json.loads(text)["content"]) == (200, "aaa")
        # What was written for it is there once it reads.
        events = events_of(read_all(slow)[2])
        assert len("".join(event["content"] for event in events)) == 4000 - 2
        assert events[-1]["stop"]


def test_idle_and_unfinished_connections_harm_nobody():
    model = fake_model(lambda _ids: 97, name="brief")
    with served(model) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        for number, connection in enumerate(idle):
            # Nothing, half a head, or half a body.
            start = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n"
            connection.sendall([b"", start, start + b'Content-Length: 99\r\n\r\n{"prompt"'][number % 3])
        for _ in range(5):
            status, _, text = read_all(send(server, {"n_predict": 3}))
            assert (status, json.loads(text)["content"]) == (200, "aaa")
        for connection in idle:
            connection.close()
        wait_until(lambda: is_idle(server, model))


def test_a_long_prompt_lets_others_write():
    """Between two chunks of it, every other reply gets a token."""
    model = endless(0.001)
    steps = model.sequence.steps
    with served(model) as server:
        writing = send(server, {"stream": True})
        wait_until(lambda: len(steps) > 5)
        status, _, text = read_all(send(server, {"prompt": "b" * 700, "n_predict": 1}))
        assert status == 200 and json.loads(text)["tokens_evaluated"] == 701
        writing.close()
        wait_until(lambda: is_idle(server, model))
    chunks = [number for number, ids in enumerate(steps) if ids[-1] == ord("b")]
    assert len(chunks) > 80
    assert all(steps[later - 1] == [97] for later in chunks[1:])


@pytest.mark.parametrize("stream", [True, False])
def test_an_end_of_the_server_ends_replies_with_an_error(stream):
    model = endless()
    with served(model, parallel=1) as server:
        running = send(server, {"stream": stream})
        wait_until(lambda: len(model.driver) == 1)
        waiting = send(server, {"stream": stream})
        wait_until(lambda: server.state.admission.waiting == 1)
        server.state.end_replies()
        for connection in (running, waiting):
            status, _, text = read_all(connection)
            error = (events_of(text)[-1] if stream else json.loads(text))["error"]
            assert (status, error["code"]) == (200 if stream else 503, "ending")


def test_replies_of_many_clients_are_those_of_the_model_alone():
    model = fake_model(lambda ids: 97 + len(ids) % 26 if len(ids) < 60 else EOS, name="counting")
    with served(model, parallel=3) as server:
        sent = [(number, send(server, {"prompt": "x" * number, "stream": number % 2 == 0})) for number in range(1, 25)]
        for number, connection in sent:
            status, _, text = read_all(connection)
            assert status == 200
            events = events_of(text) if number % 2 == 0 else [json.loads(text)]
            expected = "".join(chr(97 + length % 26) for length in range(number + 1, 60))
            assert "".join(event["content"] for event in events) == expected
        wait_until(lambda: is_idle(server, model))


def test_a_model_that_is_being_loaded_is_no_good_health():
    model, go = endless(), threading.Event()
    state = new_server(model)
    state.pool = ModelPool({"late": lambda: go.wait(SECONDS) and (model, Request(max_tokens=3))})
    with listening(state) as server:
        assert server.raw("GET", "/health") == (200, b'{"status":"ok"}')
        early = send(server, {})
        wait_until(lambda: state.pool.loading)
        status, data = server.raw("GET", "/health")
        assert (status, json.loads(data)["error"]["message"]) == (503, "Loading model")
        go.set()
        assert read_all(early)[0] == 200
        assert server.raw("GET", "/v1/health")[0] == 200
