"""Bodies of OpenAI's responses with faults: each is refused in one line, and mutations of a right one break nothing."""

import random
from copy import deepcopy

import pytest
from fake_model import EOS, fake_model
from local_server import events_of, in_process, new_server

FEW, MANY = 150, 3000
PATHS = ("/v1/responses", "/v1/responses/input_tokens")
NOT_TEXT = [5, 1.5, True, [], {}, ["a"]]
NOT_BOOL = ["yes", 1, 0, [], {}]
HELLO = {"role": "user", "content": "Hello"}
FUNCTION = {"type": "function", "name": "clock", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "12"}
# Wrong values of the fields of items; null is none, as in bodies.
ITEMS = [
    (HELLO, {"type": ["unheard_of", 5, [], {}], "role": ["nobody", 5, [], None]}),
    (HELLO, {"content": [5, True, {}, None, [5], [{}], [{"type": "input_text"}], [{"type": "input_image"}]]}),
    (HELLO, {"content": [[{"type": "input_file", "file_id": "f"}], [{"type": [], "text": "a"}]]}),
    (CALL, {"call_id": [*NOT_TEXT, None, ""], "name": [*NOT_TEXT, None, ""], "arguments": [*NOT_TEXT, None]}),
    (OUTPUT, {"call_id": [*NOT_TEXT, None, "call_2"], "output": [5, {}, None, [5], [{"type": "input_image"}]]}),
    ({"type": "reasoning"}, {"content": [5, "a", [5], [{}]], "summary": [5, "a", [5], [{"text": 5}]]}),
]
WRONG = {
    "input": [
        *(5, True, {}, [5], [[]], [None], [OUTPUT], [CALL, HELLO], [CALL, CALL], [CALL, OUTPUT, OUTPUT]),
        *[[CALL, item | {name: one}] if item is OUTPUT else [item | {name: one}]
          for item, fields in ITEMS for name, values in fields.items() for one in values],
    ],
    "instructions": NOT_TEXT,
    "max_output_tokens": ["x", 0, -1, 1.5, True, 1 << 40],
    "tools": [5, "x", {}, [5], [{}], [{"type": 5}], [{"type": []}], [FUNCTION] * 2]
    + [[FUNCTION | {name: one}] for name in ("name", "description") for one in (5, ["x"], {"a": 1})]
    + [[FUNCTION | {"parameters": 5}], [FUNCTION | {"strict": "yes"}], [FUNCTION | {"name": ""}]],
    "tool_choice": [5, "some", [], {}, "required", {"type": "function"}, {"type": "function", "name": "other"}]
    + [{"type": "allowed_tools", "mode": "auto", "tools": tools} for tools in ([], [FUNCTION], [5], [{"name": []}])],
    "parallel_tool_calls": NOT_BOOL,
    "text": [5, "x", [1], {"format": 5}, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}]
    + [{"format": {"type": "json_schema", "schema": one}} for one in (5, "x", {"type": "nothing"}, {"$ref": "#/x"})],
    "reasoning": [5, "x", [1], {"effort": 5}, {"effort": "huge"}, {"effort": []}],
    "previous_response_id": [*NOT_TEXT, "", "resp_0"],
    "truncation": [*NOT_TEXT, "some"],
    "include": [5, "x", {}, [5], ["message.output_text.logprobs"], [[]]],
    "top_logprobs": [-1, 5, 21, 1.5, "2", True],
    "metadata": [5, "x", [1], {"a": 5}],
    "background": [True, *NOT_BOOL],
    "store": NOT_BOOL,
    "stream": NOT_BOOL,
    "temperature": ["hot", [], 1e9, True],
    "seed": ["x", 1.5],
    "stop": [5, [5], {}],
    **{name: [5, "x", {"id": "x"}] for name in ("conversation", "prompt", "moderation", "unheard_of")},
    **{name: [5, [HELLO]] for name in ("messages", "n", "logprobs", "response_format", "reasoning_effort")},
}  # fmt: skip
FINE = {
    "instructions": "Be brief.",
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "max_output_tokens": 5,
    "reasoning": {"summary": "auto"},
    "user": "me",
}
RIGHT = {
    **FINE,
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Hi"}]},
        *(HELLO, {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]}),
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        *(CALL, OUTPUT, HELLO),
    ],
    "tools": [FUNCTION],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "metadata": {"a": "b"},
    "stream": True,
}


@pytest.fixture
def client():
    """Return a client, and see to it that nothing stays behind."""
    model = fake_model(lambda ids: 97 if len(ids) % 7 else EOS, context_size=400)
    server = new_server(model)
    with in_process(server) as client:
        yield client
        assert (server.admission.running, server.admission.waiting, len(model.driver)) == (0, 0, 0)
        assert client.post("/v1/responses", json=RIGHT | {"stream": False}).status_code == 200


def faults(draw):
    """Yield bodies without end: every fault once, then two at once."""
    every = [{name: one} for name, values in WRONG.items() for one in values]
    draw.shuffle(every)
    yield from every
    while True:
        yield draw.choice(every) | draw.choice(every)


def check_error(answer, body):
    assert answer.status_code == 400, (answer.status_code, answer.text, body)
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["message"].isprintable() and 0 < len(error["message"]) < 1000


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_fault_is_refused_in_one_line(client, count):
    draw = random.Random(20_261_124)
    for _, fault in zip(range(count), faults(draw)):
        fine = {name: FINE[name] for name in draw.sample([*FINE], draw.randint(0, 3))}
        body = {"input": "Hello"} | fine | fault
        check_error(client.post(draw.choice(PATHS), json=body), body)


def nodes(value, path=()):
    """Yield the way to each value in a body."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from nodes(one, (*path, key))


def mutated(draw):
    """Return a body of which a part is missing, doubled or another."""
    body = deepcopy(RIGHT)
    for _ in range(draw.randint(1, 3)):
        *way, key = draw.choice([*nodes(body)])
        parent = body
        for step in way:
            parent = parent[step]
        match draw.randrange(3):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, list):
                parent.append(parent[key])
            case _:
                parent[key] = draw.choice([None, 5, "", "x", [], {}, True, [None], deepcopy(parent[key]), -1, 1e300])
    return body


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_mutations_are_answered_or_refused(client, count):
    draw, answered = random.Random(7), 0
    for _ in range(count):
        body = mutated(draw)
        answer = client.post("/v1/responses", json=body)
        if answer.status_code != 200:
            check_error(answer, body)
            continue
        streams = answer.headers["content-type"].startswith("text/event-stream")
        response = events_of(answer.text)[-1]["response"] if streams else answer.json()
        assert response["status"] in ("completed", "incomplete"), (response, body)
        answered += 1
    assert count // 10 < answered < count
