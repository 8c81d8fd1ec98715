"""Bodies nearly as /openapi.json has them: answers or objects with an error, never a 500 or a hang."""

import json
import re

import pytest
from fake_model import EOS, fake_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local_server import in_process, new_server

from tinychat.conversation.openai import NAMES
from tinychat.generate.request import Request
from tinychat.serve import llama_fields
from tinychat.serve.model_pool import ModelPool
from tinychat.serve.openapi import openapi_document

POSTED = [path for path, methods in openapi_document()["paths"].items() if "post" in methods and "{" not in path]
FEW, MANY = 150, 5000

_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\0", "\x1b[0m", "<bos>", "a" * 3000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "nobody"])},
        optional={"content": st.text(max_size=8) | _ANYTHING, "tool_calls": _ANYTHING, "name": _ANYTHING},
    ),
    max_size=4,
)


def schema_of(path):
    """Return the schema of a path's body."""
    return openapi_document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def values_of(schema):
    """Return a strategy of the values that a schema allows."""
    if "anyOf" in schema:
        return st.one_of(*map(values_of, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    low, high = schema.get("minimum"), schema.get("maximum")
    match schema.get("type"):
        case "string":
            return st.text(max_size=8)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(low, None if high is None else int(high))
        case "number":
            return st.floats(low, high)
        case "array":
            return st.lists(values_of(schema["items"]), max_size=3)
        case "object":
            properties = {name: values_of(one) for name, one in schema.get("properties", {}).items()}
            return st.fixed_dictionaries({}, optional=properties)
    return _ANYTHING


def bodies_of(path):
    """Return a strategy of bodies: fields as the schema has them, fields of any value, and unknown ones."""
    schema = schema_of(path)
    known = {name: values_of(one) for name, one in schema["properties"].items()}
    if "messages" in known:
        known["messages"] = st.just([{"role": "user", "content": "hi"}]) | _MESSAGES
    required = {
        name: known.pop(name) | _ANYTHING if name != "messages" else known.pop(name) for name in schema["required"]
    }
    chosen = st.dictionaries(st.sampled_from(sorted(known)), st.none(), max_size=4)
    fields = chosen.flatmap(lambda names: st.fixed_dictionaries({name: known[name] | _ANYTHING for name in names}))
    return st.builds(
        lambda must, some, others: {**others, **must, **some},
        st.fixed_dictionaries(required) | st.just({}),
        fields,
        st.just({}) | st.dictionaries(st.text(max_size=6), _ANYTHING, max_size=1),
    )


@pytest.fixture(scope="module")
def client():
    """Return a client of a model that ends each reply after some letters; bodies may unload it."""
    server, models = new_server(), []

    def load():
        models.append(fake_model(lambda ids: 97 if len(ids) % 7 else EOS, name="brief", context_size=400))
        return models[-1], Request(temperature=0.0, max_tokens=12)

    server.pool = ModelPool({"brief": load})
    with in_process(server) as client:
        client.idle = lambda: (
            (server.admission.running, server.admission.waiting, sum(len(one.driver) for one in models)) == (0, 0, 0)
        )
        yield client


def check(client, path, data):
    """Send a body; see to it that the answer is one of the documented ones."""
    answer = client.post(path, content=data)
    # Nobody has allowed to pull models.
    expected = (403,) if path == "/api/pull" else (200, 400, 413, 501)
    assert answer.status_code in expected, (answer.status_code, answer.text, data)
    if answer.status_code != 200:
        message = message_of(path, answer.json())
        assert isinstance(message, str) and message and "\n" not in message, answer.text
        assert len(answer.text) < 2000
    assert client.idle()


def message_of(path, body):
    """Return the message of an error, which has the form of its protocol."""
    match body:
        case {"error": message} if path.startswith("/api/"):
            return message
        case {"error": {"message": message, "type": str(), "param": _, "code": _}} if not path.startswith(
            "/v1/messages"
        ):
            return message
        case {"type": "error", "error": {"message": message, "type": str()}} if path.startswith("/v1/messages"):
            return message
    return None


def trial(count):
    """Return a decorator: the test is run with so many bodies, the same ones in each run."""
    checked = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=checked, database=None)


def as_json(body):
    # A lone surrogate is valid JSON in ASCII.
    return json.dumps(body).encode()


@pytest.mark.parametrize("path", POSTED)
@given(st.data())
@trial(FEW // 7)
def test_some_bodies(client, path, data):
    check(client, path, as_json(data.draw(bodies_of(path))))


@pytest.mark.slow
@pytest.mark.parametrize("path", POSTED)
@given(st.data())
@trial(MANY // 7 + 1)
def test_many_bodies(client, path, data):
    check(client, path, as_json(data.draw(bodies_of(path))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 70 + b"]" * 70 + b"}",
        b'{"prompt": "a", "prompt": []}',
        b'{"prompt": "\\ud800"}',
        b'{"a": 1}' * 2,
    ],
    ids=range(14),
)
@pytest.mark.parametrize("path", POSTED)
def test_bytes_that_are_no_body(client, path, data):
    check(client, path, data)


def test_a_body_that_is_too_large(client):
    answer = client.post("/completion", content=b'{"prompt": "' + b"a" * (65 << 20) + b'"}')
    assert answer.status_code == 413 and "MiB" in answer.json()["error"]["message"]


def test_the_schema_has_all_fields_that_are_read(client):
    """What is not in it is refused, what is in it is not."""
    for path, prompt in (("/v1/completions", "a"), ("/completion", "a")):
        fields = schema_of(path)["properties"]
        assert set(NAMES) <= set(fields)
        answer = client.post(path, json={"prompt": prompt, "no_such_field": 1})
        assert answer.json()["error"]["param"] == "no_such_field"
        for name in fields:
            error = client.post(path, json={"prompt": prompt, name: {"x": []}}).json().get("error", {})
            assert "is not supported" not in error.get("message", "") or name in llama_fields.OFF


def test_the_document_is_served_and_refers_to_nothing_else(client):
    document = client.get("/openapi.json").json()
    assert document == openapi_document() and document["openapi"].startswith("3.1")
    assert not re.search(r'"\$ref"', json.dumps(document))
    for path in document["paths"]:
        if "get" in document["paths"][path] and "{" not in path:
            assert client.get(path).status_code == 200
