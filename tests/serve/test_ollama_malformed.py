"""Bodies of Ollama's endpoints with one fault and more: each is refused in one line, and nothing stays behind."""

import json
import random

import pytest
from fake_model import EOS, fake_model
from local_server import in_process, new_server

FEW, MANY = 200, 3000
HELLO = [{"role": "user", "content": "Hello"}]
NOT_TEXT = [5, 1.5, True, [], {}, ["a"]]
NOT_BOOL = ["yes", 1, 0, [], {}, "true"]
CALLS = [5, [5], [{}], [{"function": 5}], [{"function": {"name": 5}}], [{"function": {"name": "a", "arguments": [1]}}]]
OPTIONS = {
    "temperature": ["hot", [], 1e9, True],
    "top_k": ["many", 1.5, True],
    "top_p": [-1, 2, "x"],
    "seed": ["x", 1.5, -7],
    "num_predict": ["x", -3, 1.5, True],
    "stop": [5, [5], [""], {}, ["a"] * 65],
    "mirostat": [1, 2, "on"],
    "tfs_z": [0.5, "x"],
    "repeat_last_n": [-2, "x"],
    "unheard_of": [1, "x", []],
    "messages": [HELLO],
    "n": [2],
}
SHARED = {
    "stream": NOT_BOOL,
    "options": [5, "x", [1], *[{name: value} for name, values in OPTIONS.items() for value in values]],
    "format": [5, "xml", True, [1], ["json"]],
    "think": [5, "huge", "", [], {}, 1.5],
    "keep_alive": [True, [], {}, "soon", "5", "1d", "- 1s", "", "9" * 400 + "s"],
    "logprobs": NOT_BOOL,
    "top_logprobs": [-1, 21, 1.5, "2", True],
    "truncate": NOT_BOOL,
    "shift": NOT_BOOL,
    "unheard_of": [1, "x", [], {}],
}
MESSAGE = {
    "role": ["nobody", 5, [], {}],
    "content": [5, True, {}, [5], [{"type": "image_url"}]],
    "thinking": [5, ["x"], {}],
    "images": [["aGk="], "aGk=", 5],
    "tool_name": [5, ["x"]],
}
CALLED = [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}]
EMBED = {name: SHARED[name] for name in ("keep_alive", "unheard_of")} | {
    "options": [5, "x", [1]],
    "truncate": NOT_BOOL,
    "dimensions": [0, 10**9, "all", [], True],
}
WRONG = {
    "/api/chat": SHARED
    | {
        "messages": [
            *(5, "x", {}, [5], [[]], [{}]),
            *[[HELLO[0] | {name: value}] for name, values in MESSAGE.items() for value in values],
            *([*HELLO, {"role": "assistant", "tool_calls": calls}] for calls in CALLS),
            [*CALLED, {"role": "tool", "content": "x", "tool_name": "a" * 300}],
            [{"role": "tool", "content": "x"}],
        ],
        "tools": [5, "x", {}, [5], [{}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    },
    "/api/generate": SHARED
    | {
        "prompt": NOT_TEXT,
        "suffix": [*NOT_TEXT, "x"],
        "system": NOT_TEXT,
        "template": [*NOT_TEXT, "{{ .Prompt }}"],
        "raw": NOT_BOOL,
        "context": [5, "x", {}, ["x"], [1.5], [True], [10**30], [-1]],
        "images": [["aGk="], "aGk=", 5],
    },
    "/api/embed": EMBED | {"input": [5, {}, [5], ["a", ""], [["a"]], True]},
    "/api/embeddings": EMBED | {"prompt": NOT_TEXT},
}
FINE = {
    "stream": [True, False],
    "options": [{}, {"temperature": 0.5, "num_ctx": 10**9}, {"num_gpu": 1, "stop": ["x"]}],
    "format": ["", "json", {"type": "object"}],
    "think": [True, False, "low"],
    "keep_alive": [5, "5m", -1],
    "truncate": [True, False],
}
START = {
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "Hello"},
    "/api/embed": {"input": "Hello"},
    "/api/embeddings": {"prompt": "Hello"},
}


def bodies(count):
    """Yield so many paths and bodies, the same ones in each run: every fault once, then several at once."""
    draw = random.Random(20_261_124)
    every = [(path, {name: one}) for path, fields in WRONG.items() for name, values in fields.items() for one in values]
    draw.shuffle(every)
    for number in range(count):
        path, faults = every[number % len(every)]
        if number >= len(every):
            name = draw.choice([*WRONG[path]])
            faults = faults | {name: draw.choice(WRONG[path][name])}
        known = [name for name in FINE if name in WRONG[path]]
        names = draw.sample(known, draw.randint(0, min(3, len(known))))
        yield path, START[path] | {name: draw.choice(FINE[name]) for name in names} | faults


def cut(data, draw):
    """Return a body that ends too early, or has bytes that are no text."""
    end = draw.randrange(1, len(data))
    return draw.choice([data[:end], data[:end] + b"\xff" + data[end:], data + b"}", data.replace(b":", b"=")])


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_fault_is_refused_in_one_line(count):
    model = fake_model(lambda _ids: EOS, context_size=400)
    server, draw = new_server(model), random.Random(7)
    with in_process(server) as client:
        for number, (path, body) in enumerate(bodies(count)):
            data = json.dumps(body).encode()
            answer = client.post(path, content=cut(data, draw) if number % 10 == 9 else data)
            assert answer.status_code == 400, (answer.status_code, answer.text, path, body)
            (key,), (message,) = answer.json().keys(), answer.json().values()
            assert key == "error" and isinstance(message, str) and message and message.isprintable()
            assert len(message) < 1000
        assert (server.admission.running, server.admission.waiting, len(model.driver)) == (0, 0, 0)
        assert client.post("/api/chat", json={"messages": HELLO, "stream": False}).status_code == 200
