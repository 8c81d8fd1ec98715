"""The promise across protocols: the same request has the same ids by each of them, and by the command line."""

import json
import random

import pytest
from console import Console
from local_server import DEFAULTS, demo, serving

SYSTEMS = [None, "You are brief.", "You are a helpful assistant."]
QUESTIONS = ["Hello", "Why is the sky blue?", "Tell me a story about a king.", "What is 2 + 2?"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}}, "required": ["city"]} | {
    "additionalProperties": False
}
FEW, MANY = 12, 100


def recorded(count):
    """Return so many requests, as bodies of chat completions; the same ones in each run."""
    draw = random.Random(20_261_124)
    return [_request(draw) for _ in range(count)]


def _request(draw):
    system, turns = draw.choice(SYSTEMS), draw.sample(QUESTIONS, draw.choice([1, 1, 3]))
    messages = [{"role": "system", "content": system}] * (system is not None)
    messages += [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), turns)]
    body = {"messages": messages, "max_tokens": draw.randint(1, 30)}
    body |= {"temperature": draw.choice([0.0, 0.9]), "seed": draw.randrange(1 << 30), "top_p": draw.choice([0.9, 0.95])}
    form = draw.choice(["text", "text", "schema", "tools"])
    if form == "schema":
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    if form == "tools":
        function = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
        body["tools"] = [{"type": "function", "function": function}]
    return body


def as_openai(body):
    return "/v1/chat/completions", body


def as_anthropic(body):
    given = dict(body)
    messages = given.pop("messages")
    if messages[0]["role"] == "system":
        given["system"], messages = messages[0]["content"], messages[1:]
    if "response_format" in given:
        schema = given.pop("response_format")["json_schema"]["schema"]
        given["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if "tools" in given:
        functions = [tool["function"] for tool in given["tools"]]
        given["tools"] = [{**one, "input_schema": one["parameters"]} for one in functions]
        for tool in given["tools"]:
            del tool["parameters"]
    return "/v1/messages", given | {"model": "demo", "messages": messages}


def as_responses(body):
    given = {name: body[name] for name in ("temperature", "seed", "top_p")}
    given |= {"input": body["messages"], "max_output_tokens": body["max_tokens"]}
    if "response_format" in body:
        schema = body["response_format"]["json_schema"]["schema"]
        given["text"] = {"format": {"type": "json_schema", "name": "place", "schema": schema}}
    if "tools" in body:
        given["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
    return "/v1/responses", given


def as_ollama(body):
    given = {name: body[name] for name in ("messages", "tools") if name in body}
    if "response_format" in body:
        given["format"] = body["response_format"]["json_schema"]["schema"]
    options = {name: body[name] for name in ("temperature", "seed", "top_p")} | {"num_predict": body["max_tokens"]}
    return "/api/chat", given | {"model": "demo:latest", "stream": False, "options": options}


def ids_of(server, path, body):
    """Return the ids of prompt and reply."""
    status, answer = server.post(path, body)
    assert status == 200, answer
    return [*max(server.state.admission.slots, key=lambda slot: slot.task).ids]


def by_command(console, body, folder):
    """Return the ids of the prompt of `complete` and of its reply; None for what it cannot be asked."""
    *before, question = body["messages"]
    if "tools" in body or len(before) > 1 or (before and before[0]["role"] != "system"):
        return None
    flags = [part for name in ("max_tokens", "temperature", "seed", "top_p") for part in _flag(name, body[name])]
    flags += [part for message in before for part in ("--system", message["content"])]
    if "response_format" in body:
        (folder / "schema.json").write_text(json.dumps(SCHEMA))
        flags += ["--schema", folder / "schema.json"]
    code, out, error = console.run("complete", "-p", question["content"], "--json", "--chat", "--no-log", *flags)
    assert code == 0, error
    found = json.loads(out)
    return found["prompt_tokens"], found["token_ids"]


def _flag(name, value):
    return f"--{name.replace('_', '-')}", str(value)


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_the_same_ids_by_each_protocol(count, monkeypatch, capsys, tmp_path):
    pytest.importorskip("llguidance")
    asked, commands = set(), 0
    with serving(demo(), DEFAULTS) as server, demo() as model:
        console = Console(model, monkeypatch, capsys)
        for body in recorded(count):
            ids = ids_of(server, *as_openai(body))
            for protocol in (as_responses, as_anthropic, as_ollama):
                assert ids_of(server, *protocol(body)) == ids, (protocol, body)
            if (found := by_command(console, body, tmp_path)) is not None:
                prompt, reply = found
                assert (len(ids) - len(reply), ids[prompt:]) == (prompt, reply), body
                commands += 1
            asked.add(tuple(ids))
    assert len(asked) > count // 2 and commands >= count // 4
