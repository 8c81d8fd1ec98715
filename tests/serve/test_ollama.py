"""Ollama's own client, unmodified, against the server."""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_model import EOS, ByteTokenizer, FakeSequence, MarkedTools, MarkerTemplate, Replies, fake_model
from local_server import demo, serving

from tinychat.generate.model import Model

ollama = pytest.importorskip("ollama", reason="Ollama's client is not installed")

HELLO = [{"role": "user", "content": "Hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Bonn", "Rome"]}}} | {
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tell the weather.", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
OPTIONS = {"temperature": 0, "num_predict": 12}


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The name of the city.
    """
    return f"Rain in {city}"


def client_of(server, **options):
    return ollama.Client(f"http://127.0.0.1:{server.port}", timeout=120, **options)


@contextmanager
def connected(model):
    """Serve a model; give a client of it."""
    with serving(model) as server, client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as found:
        yield found


class ClosingTemplate(MarkerTemplate):
    """Has a switch for thinking; without it the model begins a section itself."""

    def __init__(self):
        super().__init__(thinking_switch="enable_thinking")
        self.seen = []

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        self.seen.append(variables)
        return super().render_ids(messages, add_generation_prompt)


def writer(*replies, template=None):
    """Return a model that writes these replies, one after the other."""
    sequence = FakeSequence(Replies(*replies), context_size=4096)
    model = Model(sequence, ByteTokenizer(), template or MarkerTemplate(), frozenset({EOS}), Path("fake"))
    model.tool_template = MarkedTools(model)
    return model


def joined(lines):
    """Return the message that the lines of a stream add up to, and the last line."""
    *lines, last = lines
    assert last.done and not any(line.done for line in lines)
    message = {"content": "", "thinking": "", "tool_calls": []}
    for line in [*lines, last]:
        message["content"] += line.message.content
        message["thinking"] += line.message.thinking or ""
        message["tool_calls"] += line.message.tool_calls or []
    return message, last


def check_counts(answer):
    """See to the counts and durations of an answer: whole nanoseconds, as parts of the whole."""
    parts = [answer.load_duration, answer.prompt_eval_duration, answer.eval_duration]
    assert all(type(part) is int and part > 0 for part in parts)
    assert sum(parts) < answer.total_duration + 1_000_000 and answer.total_duration < 120e9
    assert answer.prompt_eval_count > 0 and answer.eval_count > 0


VARIANTS = {
    "greedy": {},
    "sampled": {"options": {"temperature": 0.8, "seed": 5, "top_p": 0.9, "num_predict": 12, "num_thread": 1}},
    "stop": {"options": OPTIONS | {"stop": ["help", "do"], "num_ctx": 8192, "num_gpu": 0, "typical_p": 1.0}},
    "no limit": {"options": {"temperature": 0, "num_predict": -1, "stop": ["."]}},
    "json": {"format": "json"},
    "schema": {"format": CITY},
    "system": {"messages": [{"role": "system", "content": "You are brief."}, *HELLO]},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "tools": {"tools": [weather]},
    "think": {"think": False},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_streamed_and_not(server, client, name):
    fields = {"model": "demo", "messages": HELLO, "options": OPTIONS} | VARIANTS[name]
    whole = client.chat(**fields)
    message, last = joined(client.chat(**fields, stream=True))
    assert message["content"] == whole.message.content != ""
    for answer in (whole, last):
        assert (answer.model, answer.done, answer.done_reason) == ("demo", True, whole.done_reason)
        check_counts(answer)
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    assert whole.done_reason == ("length" if whole.eval_count == 12 else "stop")
    tools = {"tools": [WEATHER]} if "tools" in fields else {}
    _, data = server.raw("POST", "/api/chat", json.dumps(fields | tools))
    for line in data.decode().splitlines():
        ollama.ChatResponse.model_validate_json(line, strict=True)
    if name == "logprobs":
        scored = [one for line in client.chat(**fields, stream=True) for one in line.logprobs or ()]
        assert [one.token for one in scored] == [one.token for one in whole.logprobs]
        assert len(scored) == whole.eval_count and all(len(one.top_logprobs) == 2 for one in scored)


def test_the_same_answer_as_a_chat_completion(server, client):
    for seed, system in ((1, "You are brief."), (2, None), (3, "You are a pirate.")):
        messages = [{"role": "system", "content": system}] * (system is not None) + HELLO
        fields = {"temperature": 0.9, "seed": seed}
        theirs = client.chat("demo", messages, options=fields | {"num_predict": 20})
        _, ours = server.post("/v1/chat/completions", fields | {"messages": messages, "max_tokens": 20})
        assert theirs.message.content == ours["choices"][0]["message"]["content"]
        assert theirs.prompt_eval_count == ours["usage"]["prompt_tokens"]
        texts = {"system": system} if system else {}
        completion = client.generate("demo", "Hello", options=fields | {"num_predict": 20}, **texts)
        assert completion.response == theirs.message.content


def test_the_asynchronous_client(server, client):
    async def talk():
        async with ollama.AsyncClient(f"http://127.0.0.1:{server.port}", timeout=120) as found:
            ask = {"model": "demo", "messages": HELLO, "options": OPTIONS}
            stream = await found.chat(**ask, stream=True)
            lines = [line async for line in stream]
            return lines, await asyncio.gather(*(found.chat(**ask) for _ in range(3)))

    lines, answers = asyncio.run(talk())
    expected = client.chat("demo", HELLO, options=OPTIONS).message.content
    assert joined(lines)[0]["content"] == expected
    assert [one.message.content for one in answers] == [expected] * 3


@pytest.mark.parametrize("stream", [True, False])
def test_tools_and_their_results(stream):
    history = [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
        {"role": "tool", "content": "Sun", "tool_name": "weather"},
        {"role": "user", "content": "And in Bonn?"},
    ]
    with connected(writer(f"<think>Hm.</think>I ask.{CALL}")) as client:
        fields = {"model": "demo", "messages": history, "tools": [weather], "think": True}
        found = client.chat(**fields, stream=stream)
        message, last = joined(found) if stream else (found.message.model_dump(), found)
    (call,) = message["tool_calls"]
    call = call if isinstance(call, dict) else call.model_dump()
    assert call["function"] == {"name": "weather", "arguments": {"city": "Bonn"}}
    assert (message["content"], message["thinking"], last.done_reason) == ("I ask.", "Hm.", "stop")


def test_a_call_that_is_cut_is_none():
    with connected(writer(CALL)) as client:
        answer = client.chat("demo", HELLO, tools=[weather], options={"num_predict": 60})
    assert (answer.message.tool_calls, answer.done_reason) == (None, "length")


@pytest.mark.parametrize(
    ("think", "seen"),
    [
        (None, {}),
        (True, {"enable_thinking": True, "reasoning_effort": "medium"}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
        (False, {"enable_thinking": False, "reasoning_effort": "none"}),
    ],
)
def test_thinking(think, seen):
    model = writer("<think>Hm.</think>Yes.", "<think>Hm.</think>Yes.", template=ClosingTemplate())
    with connected(model) as client:
        answer = client.chat("demo", HELLO, think=think)
        completion = client.generate("demo", "Hello", think=think)
    assert model.template.seen == [seen, seen]
    thought = None if think is False else "Hm."
    assert (answer.message.thinking or "").strip() == (thought or "")
    assert answer.message.content == "Yes."
    assert (completion.response, completion.thinking) == ("Yes.", answer.message.thinking)


def test_a_completion_goes_on_by_its_context(server, client):
    first = client.generate("demo", "Hello", options=OPTIONS | {"num_predict": 200})
    assert first.done_reason == "stop"
    second = client.generate("demo", "Why?", context=first.context, options=OPTIONS)
    messages = [*HELLO, {"role": "assistant", "content": first.response}, {"role": "user", "content": "Why?"}]
    chat = client.chat("demo", messages, options=OPTIONS)
    assert second.response == chat.message.content
    assert second.prompt_eval_count == chat.prompt_eval_count > first.prompt_eval_count
    assert second.context[: len(first.context)] == first.context
    assert len(second.context) == second.prompt_eval_count + second.eval_count
    *_, last = client.generate("demo", "Why?", context=first.context, options=OPTIONS, stream=True)
    assert last.context == second.context


def test_a_raw_completion_is_of_the_text_alone(server, client):
    text = "<|user|>Hello<|end|><|assistant|>"
    raw = client.generate("demo", text, raw=True, options=OPTIONS)
    _, llama = server.post("/completion", {"prompt": text, "temperature": 0, "n_predict": 12})
    assert (raw.response, raw.prompt_eval_count) == (llama["content"], llama["tokens_evaluated"])
    assert raw.context is None
    lines = [*client.generate("demo", text, raw=True, options=OPTIONS, stream=True)]
    assert "".join(line.response for line in lines) == raw.response


def test_raw_thoughts_are_text():
    with connected(fake_model(Replies("<think>Hm.</think>Yes."))) as client:
        answer = client.generate("demo", "<user>Hello<assistant>", raw=True, think=True)
    assert (answer.response, answer.thinking) == ("<think>Hm.</think>Yes.", None)


def test_a_suffix_needs_a_model_that_fills_in(client):
    with pytest.raises(ollama.ResponseError, match="no tokens for a prefix") as error:
        client.generate("demo", "def a():", suffix="return b")
    assert error.value.status_code == 400


def test_embeddings(server, client):
    texts = ["Hello", "Why is the sky blue?"]
    found = client.embed("demo", texts, keep_alive="5m")
    _, ours = server.post("/v1/embeddings", {"input": texts})
    assert found.embeddings == [one["embedding"] for one in ours["data"]]
    assert (found.model, found.prompt_eval_count) == ("demo", ours["usage"]["prompt_tokens"])
    assert 0 < found.load_duration < found.total_duration
    assert client.embed("demo", texts[0]).embeddings == [found.embeddings[0]]
    assert client.embeddings("demo", texts[0]).embedding == found.embeddings[0]
    assert (client.embed("demo", "").embeddings, client.embeddings("demo", "").embedding) == ([], [])
    long = "word " * 3000
    assert client.embed("demo", long).prompt_eval_count == 1024
    with pytest.raises(ollama.ResponseError, match="context"):
        client.embed("demo", long, truncate=False)
    (cut,) = client.embed("demo", texts[0], dimensions=64).embeddings
    np.testing.assert_allclose(cut, found.embeddings[0][:64] / np.linalg.norm(found.embeddings[0][:64]), atol=1e-6)
    with pytest.raises(ollama.ResponseError, match="dimensions must be a whole number, 1 to 256"):
        client.embed("demo", "a", dimensions=257)


def test_models_are_listed_and_described(server, client):
    (listed,), (running,) = client.list().models, client.ps().models
    assert (listed.model, listed.digest, listed.size) == (running.model, running.digest, running.size)
    assert len(listed.digest) == 64 and listed.size > 1_000_000
    details = {"format": "tinychat", "family": "llama", "families": ["llama"], "parameter_size": "5.3M"}
    assert listed.details.model_dump() == details | {"parent_model": "", "quantization_level": "int4"}
    assert (running.context_length, running.size_vram) == (1024, 0)
    shown = client.show("demo:latest")
    assert shown.details == listed.details and shown.modified_at == listed.modified_at
    assert shown.capabilities == ["completion", "tools"]
    assert "messages" in shown.template and "num_ctx                        1024" in shown.parameters
    info = shown.modelinfo
    assert (info["general.architecture"], info["llama.block_count"], info["llama.context_length"]) == ("llama", 7, 1024)
    assert json.loads(server.raw("GET", "/api/version")[1])["version"].startswith("0.")
    assert server.raw("HEAD", "/") == (200, b"")


def test_thinking_is_a_capability():
    with connected(writer(template=ClosingTemplate())) as client:
        assert client.show("demo").capabilities == ["completion", "tools", "thinking"]


def test_a_model_is_loaded_by_nothing_to_answer(client):
    for answer in (client.chat("demo"), client.chat("demo", [], stream=False), client.generate("demo")):
        assert (answer.done, answer.done_reason) == (True, "load")
    assert [line.done_reason for line in client.generate("demo", stream=True)] == ["load"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"temperature": "hot"}}, "temperature"),
        ({"options": {"mirostat": 2}}, "mirostat"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"messages": []}}, "options.messages"),
        ({"format": "", "think": "huge"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"messages": [{"role": "user", "content": "a", "images": [b"abc"]}]}, r"messages\[0\].images"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages must be a list"),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, "context"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors(client, fields, message, stream):
    with pytest.raises(ollama.ResponseError, match=message) as error:
        list(client.chat(**{"model": "demo", "messages": HELLO, "stream": stream} | fields))
    assert error.value.status_code == 400 and "\n" not in error.value.error


def test_what_is_not_served(client):
    for ask in (
        lambda: client.copy("demo", "other"),
        lambda: client.create("a", from_="demo"),
        lambda: client.push("a"),
    ):
        with pytest.raises(ollama.ResponseError, match="is not served") as error:
            ask()
        assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="--allow-pull") as error:
        client.pull("smollm2-135m")
    assert error.value.status_code == 403


def test_the_door_holds():
    with serving(demo(), keys=("right",)) as closed:
        with client_of(closed) as stranger, pytest.raises(ollama.ResponseError, match="API key") as error:
            stranger.list()
        assert error.value.status_code == 401
        with client_of(closed, headers={"Authorization": "Bearer right"}) as known:
            assert [one.model for one in known.list().models] == ["demo"]
