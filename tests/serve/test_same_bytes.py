"""The promise: a request has the same answer alone, beside others, behind others, after a restart, streamed or not."""

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from local_server import demo, serving

SYSTEMS = [None, "You are brief.", "You are a helpful assistant. " * 6]
QUESTIONS = ["Hello", "Why is the sky blue?", "Tell me a story about a king.", "What is 2 + 2?", "Count: 1, 2, 3,"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "n": {"type": "integer"}},
} | {
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "trains")]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}

CACHE_DISK = 100_000_000


def recorded(count):
    """Return so many requests: paths and bodies, the same in every run."""
    draw = random.Random(20_261_101)
    return [_request(draw) for _ in range(count)]


def _request(draw):
    body = {"model": "demo", "max_tokens": draw.randint(1, 40), "temperature": draw.choice([0, 0.8])}
    body["seed"] = draw.randrange(1 << 30)
    if draw.random() < 0.2:
        body |= {"top_p": 0.9, "frequency_penalty": 0.5, "logit_bias": {str(draw.randrange(500)): 3}}
    if draw.random() < 0.2:
        body["stop"] = draw.choice(["you", ["a", "e"], "."])
    if draw.random() < 0.2:
        body["n"] = 2
    if draw.random() < 0.25:
        prompt = draw.choice(QUESTIONS)
        fields = {"prompt": draw.choice([prompt, [prompt, "The"]]), "echo": draw.random() < 0.5}
        return "/v1/completions", body | fields | draw.choice([{}, {"logprobs": 2}])
    system, turns = draw.choice(SYSTEMS), draw.sample(QUESTIONS, draw.choice([1, 1, 3]))
    roles = ("user", "assistant", "user")
    body["messages"] = [{"role": "system", "content": system}] * (system is not None)
    body["messages"] += [{"role": role, "content": text} for role, text in zip(roles, turns)]
    form = draw.choice(["text", "text", "logprobs", "schema", "tools", "auto"])
    body |= {
        "text": {},
        "logprobs": {"logprobs": True, "top_logprobs": draw.randrange(4)},
        "schema": {"response_format": SCHEMA},
        "tools": {
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": draw.random() < 0.2,
            "max_tokens": 80,
        },
        "auto": {"tools": TOOLS},
    }[form]
    return "/v1/chat/completions", body


def at_once(server, path, body):
    """Return what an answer must have the same."""
    status, answer = server.post(path, body)
    assert status == 200, answer
    return _counted(answer["usage"]), [_choice(choice) for choice in answer["choices"]]


def _counted(usage):
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}


def _choice(choice):
    text = choice["text"] if "text" in choice else choice["message"].get("content") or ""
    calls = choice.get("message", {}).get("tool_calls", [])
    return text, calls, choice["logprobs"], choice["finish_reason"]


def cached_tokens(server, path, body):
    """Return how many tokens of the prompt were not computed."""
    return server.post(path, body)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]


def streamed(server, path, body):
    """Return the same of an answer that is streamed."""
    chunks = server.chunks(path, body | {"stream_options": {"include_usage": True}})
    usage = chunks.pop()["usage"]
    choices = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        found = choices.setdefault(choice["index"], {"text": "", "calls": [], "logprobs": None, "reason": None})
        delta = choice.get("delta", choice)
        found["text"] += delta.get("text", delta.get("content")) or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                found["calls"].append({name: call[name] for name in ("id", "type", "function")})
            else:
                found["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        for name, values in (choice["logprobs"] or {}).items():
            found["logprobs"] = found["logprobs"] or {}
            found["logprobs"][name] = values if values is None else [*found["logprobs"].get(name, []), *values]
        found["reason"] = choice["finish_reason"] or found["reason"]
    return _counted(usage), [tuple(choices[index].values()) for index in sorted(choices)]


def cancelled(server, path, body):
    """Send a request and go away before its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", path, json.dumps(body | {"stream": True, "max_tokens": 60, "stop": None}))
    response = connection.getresponse()
    response.read(20)
    response.close()
    connection.close()


def check(count):
    requests = recorded(count)
    with serving(demo(), cache_disk=CACHE_DISK) as server:
        alone = [at_once(server, *request) for request in requests]
        order = [*range(count)]
        random.Random(1).shuffle(order)
        with ThreadPoolExecutor(16) as pool:
            jobs, leaving = {}, []
            for number in order:
                jobs[number] = pool.submit((at_once, streamed)[number % 2], server, *requests[number])
                if number % 3 == 0:
                    leaving.append(pool.submit(cancelled, server, *requests[number]))
        for one in leaving:
            one.result()
        for number, job in jobs.items():
            assert job.result() == alone[number], requests[number]
        assert server.state.admission.running == server.state.admission.waiting == 0
        longest = max(requests, key=lambda request: len(json.dumps(request)))
        before = at_once(server, *longest)
    with serving(demo(), cache_disk=CACHE_DISK) as server:
        # The first request after the restart finds what the first server saved.
        assert cached_tokens(server, *longest) > 100
        assert at_once(server, *longest) == before
        for number in reversed(range(count)):
            assert streamed(server, *requests[number]) == alone[number], requests[number]
    return alone


def test_same_bytes():
    answers = check(32)
    # They are not all alike, and every form is among them.
    texts = [text for _, choices in answers for text, _, _, _ in choices]
    reasons = {reason for _, choices in answers for _, _, _, reason in choices}
    assert len(set(texts)) > 12
    assert {"stop", "length", "tool_calls"} <= reasons


@pytest.mark.slow
def test_same_bytes_of_two_hundred():
    check(200)
