"""``/v1/embeddings``: OpenAI's client, unmodified; fields; turns; clients that go away."""

import base64
import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_model import EOS, fake_model
from local_server import new_server, serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tinychat.models.embedder import Embedder
from tinychat.serve.embeddings import embed_texts

TEXTS = ["The sky is blue.", "Bread is baked in an oven.", "a"]


@pytest.fixture
def model(server):
    return server.state.pool.loaded[0].model


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as found:
        yield found


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_openais_client(server, client, model, encoding):
    expected = model.embed(TEXTS)
    # Its own default is base64, which it decodes.
    answer = client.embeddings.create(model="demo", input=TEXTS)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert np.array([one.embedding for one in answer.data], np.float32).tobytes() == expected.tobytes()
    tokens = sum(len(model.embedding.text_ids(text)) for text in TEXTS)
    assert (answer.model, answer.usage.prompt_tokens, answer.usage.total_tokens) == ("demo", tokens, tokens)
    answer = client.embeddings.create(model="demo", input=TEXTS, encoding_format=encoding)
    for one, vector in zip(answer.data, expected):
        found = one.embedding
        numbers = np.frombuffer(base64.b64decode(found), "<f4") if encoding == "base64" else np.array(found, np.float32)
        assert numbers.tobytes() == vector.tobytes()


def test_each_form_of_input(server, model):
    ids = model.embedding.text_ids(TEXTS[0])
    for given, count in ((TEXTS[0], 1), ([TEXTS[0]], 1), (ids, 1), ([ids, ids], 2), ([TEXTS[0], ids], 2)):
        for path in ("/v1/embeddings", "/embeddings"):
            status, answer = server.post(path, {"input": given, "user": "me"})
            assert (status, len(answer["data"])) == (200, count)
            for one in answer["data"]:
                assert np.array(one["embedding"], np.float32).tobytes() == model.embed([ids])[0].tobytes()


def test_pooling_of_a_request(server, model):
    answer = server.post("/v1/embeddings", {"input": TEXTS[0], "pooling": "last"})[1]
    vector = np.array(answer["data"][0]["embedding"], np.float32)
    assert vector.tobytes() == model.embed([TEXTS[0]], pooling="last")[0].tobytes()


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "must be a text, a list of"),
        ({"input": []}, "input", "must be a text, a list of"),
        ({"input": ""}, "input", "empty text"),
        ({"input": ["a", ""]}, "input", "empty text"),
        ({"input": [1, "a"]}, "input", "must be a text"),
        ({"input": [[1], []]}, "input", "must be a text"),
        ({"input": [True]}, "input", "must be a text"),
        ({"input": ["a"] * 2049}, "input", "up to 2048"),
        ({"input": [10**9]}, None, "outside the model's vocabulary"),
        ({"input": "a", "dimensions": 0}, "dimensions", "must be a whole number, 1 to"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "must be one of float, base64"),
        ({"input": "a", "pooling": "max"}, "pooling", "must be one of mean, last, cls"),
        ({"input": "a", "prompt": "query"}, "prompt", "this model has none"),
        ({"input": "a", "prompt": 1}, "prompt", "must be the name of a prompt"),
        ({"input": "a", "temperature": 1}, "temperature", "is not supported"),
    ],
)
def test_what_cannot_be_answered(server, body, param, message):
    status, answer = server.post("/v1/embeddings", body)
    assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, param, "invalid_request_error")
    assert message in answer["error"]["message"]


def test_a_text_longer_than_the_context(server, model):
    status, answer = server.post("/v1/embeddings", {"input": "word " * model.context_size})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def test_the_same_bytes_beside_other_requests(server):
    bodies = [{"input": TEXTS[: 1 + number % 3]} for number in range(6)]
    alone = [server.post("/v1/embeddings", body) for body in bodies]
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
    reply = server.post("/v1/chat/completions", chat)[1]["choices"]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.post, "/v1/embeddings", body) for body in bodies]
        replies = [pool.submit(server.post, "/v1/chat/completions", chat) for _ in range(2)]
        assert [one.result() for one in asked] == alone
        assert [one.result()[1]["choices"] for one in replies] == [reply, reply]
    assert server.state.admission.running == 0


def test_prompts_of_an_embedding_model():
    model = fake_model(lambda ids: 97)
    model.embedder, model.writes = Embedder("last", {"query": "Query:"}), False
    with serving(model) as server:
        answer = server.post("/v1/embeddings", {"input": "ab", "prompt": "query"})[1]
        assert answer["usage"]["prompt_tokens"] == len("Query:ab") + 1
        assert np.argmax(answer["data"][0]["embedding"]) == ord("b")
        status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
        assert (status, "gives embeddings, not text" in answer["error"]["message"]) == (400, True)


@pytest.mark.parametrize("text", ["a" * 500, [97] * 500])
def test_an_endpoint_may_cut_texts(text):
    model = fake_model(lambda ids: 97, context_size=64)
    model.tokenizer.suffix_ids = [EOS]
    state = new_server(model)

    async def cut(http):
        async with state.use(None) as served:
            found = await embed_texts(state, http, served, [text, "b"], pooling="last", cuts=True)
        return JSONResponse({"counts": found.counts, "last": [int(np.argmax(vector)) for vector in found.vectors]})

    with TestClient(Starlette(routes=[Route("/", cut, methods=["POST"])])) as client:
        answer = client.post("/").json()
    assert answer == {"counts": [64, 3], "last": [97 if isinstance(text, list) else EOS, EOS]}
    assert (state.metrics.prompt_tokens_total, state.admission.running) == (67, 0)


def test_a_client_that_goes_away_ends_the_work_and_its_turn():
    model = fake_model(lambda ids: 97, context_size=4096)
    began, goes_on = threading.Event(), threading.Event()
    steps = []

    def slow(chunks, run=model.engine.hidden_states):
        steps.append(len(chunks))
        began.set()
        goes_on.wait(10)
        return run(chunks)

    model.engine.hidden_states = slow
    with serving(model, parallel=1) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/v1/embeddings", json.dumps({"input": "a" * 4000}))
        assert began.wait(10)
        connection.close()
        del model.engine.hidden_states
        # The next request waits for the turn of the first, which ends with its step.
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.post, "/v1/embeddings", {"input": "b"})
            goes_on.set()
            assert asked.result()[0] == 200
        assert server.state.admission.running == 0 and len(steps) == 1
