"""Clients that many people have, unmodified: litellm, llm, lm-evaluation-harness; what is missing is skipped."""

import json

import numpy as np
import pytest
from fake_model import Replies, fake_model
from local_server import log_softmax, serving

pytestmark = pytest.mark.filterwarnings("ignore")

HELLO = [{"role": "user", "content": "Hello"}]
ANSWER = "Hello there! What can I do for you?"
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Köln"]}}, "required": ["city"]} | {
    "additionalProperties": False
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": PARAMETERS}}


@pytest.fixture
def litellm(monkeypatch):
    # Else it fetches a list of prices.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    found = pytest.importorskip("litellm", reason="litellm is not installed")
    found.telemetry = False
    return found


def test_litellm(server, litellm):
    fields = {"model": "openai/demo", "api_base": server.url, "api_key": "none", "messages": HELLO, "temperature": 0}
    answer = litellm.completion(**fields)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (ANSWER, "stop")
    chunks = list(litellm.completion(**fields, stream=True))
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == ANSWER
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": PARAMETERS}}
    text = litellm.completion(**fields, response_format=schema).choices[0].message.content
    assert json.loads(text)["city"] in ("Bonn", "Köln")
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**fields, "temperature": -1})


def test_litellm_with_tools(server, litellm):
    pytest.importorskip("mcp", reason="litellm needs mcp for tools")
    fields = {"model": "openai/demo", "api_base": server.url, "api_key": "none", "messages": HELLO, "temperature": 0}
    asked = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    called = litellm.completion(**fields, **asked).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Bonn", "Köln")
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**fields, **asked, stream=True))).choices[0].message
    assert [(one.id, one.function.arguments) for one in streamed.tool_calls] == [(call.id, call.function.arguments)]


@pytest.fixture
def llm_model(tmp_path, monkeypatch):
    """Return a function that returns the model of a server, as llm finds it in its file of further OpenAI models."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    llm = pytest.importorskip("llm", reason="llm is not installed")

    def of(server):
        entry = {"model_id": "tiny", "model_name": "demo", "api_base": server.url}
        text = json.dumps([entry | {"supports_tools": True, "supports_schema": True}])
        (tmp_path / "extra-openai-models.yaml").write_text(text, encoding="utf-8")
        return llm.get_model("tiny")

    return of


@pytest.mark.parametrize("stream", [False, True])
def test_llm(llm_model, server, stream):
    fields = {"temperature": 0, "stream": stream, "key": "none"}
    assert llm_model(server).prompt("Hello", **fields).text() == ANSWER
    assert json.loads(llm_model(server).prompt("Hello", schema=PARAMETERS, **fields).text())["city"] in ("Bonn", "Köln")


@pytest.mark.parametrize("stream", [False, True])
def test_llm_with_tools(llm_model, stream):
    """A replayed model calls a tool, and answers with its result."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
    seen = []

    def weather(city: str) -> str:
        """Return the weather."""
        seen.append(city)
        return "rain"

    with serving(fake_model(Replies(call, "It rains in Bonn."), context_size=4096)) as server:
        chain = llm_model(server).chain("Weather in Bonn?", tools=[weather], stream=stream, key="none")
        assert chain.text().endswith("It rains in Bonn.")
    assert seen == ["Bonn"]


TEXTS = [("The sky is", " blue because"), ("Once upon a time", " there was a king"), ("A", " b c d e")]


def as_harness(ids):
    """Return the request that lm-evaluation-harness' local-completions sends for log-likelihoods."""
    return {
        "model": "demo",
        "prompt": ids,
        "max_tokens": 1,
        "echo": True,
        "logprobs": 1,
        "seed": 1234,
        "temperature": 0,
    }


def scored(model, context, continuation):
    """Return log-likelihood and greediness of a continuation by our own logits."""
    ids = [*context, *continuation]
    rows = model.logits(ids)
    places = range(len(context) - 1, len(ids) - 1)
    total = sum(log_softmax(rows[place])[ids[place + 1]] for place in places)
    return total, all(int(np.argmax(rows[place])) == ids[place + 1] for place in places)


@pytest.mark.parametrize("as_list", [False, True])
def test_the_requests_of_the_harness(server, as_list):
    model = server.state.pool.loaded[0].model
    pairs = [(model.encode(begin), model.encode(end, add_bos=False)) for begin, end in TEXTS]
    prompts = [[*context, *continuation] for context, continuation in pairs]
    if as_list:
        choices = server.post("/v1/completions", as_harness(prompts))[1]["choices"]
    else:
        choices = [server.post("/v1/completions", as_harness(ids))[1]["choices"][0] for ids in prompts]
    for (context, continuation), choice in zip(pairs, choices):
        fields = choice["logprobs"]
        assert len({len(values) for values in fields.values()}) == 1
        assert fields["token_logprobs"][0] is fields["top_logprobs"][0] is None
        # Its own reading: all tokens but the one that was written.
        logprobs = fields["token_logprobs"][len(context) : -1]
        best = [max(top, key=top.get) for top in fields["top_logprobs"][len(context) : -1]]
        is_greedy = best == fields["tokens"][len(context) : -1]
        assert sum(logprobs) == pytest.approx(scored(model, context, continuation)[0], abs=1e-9)
        assert is_greedy == scored(model, context, continuation)[1]


def test_the_harness_itself(server, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")
    pytest.importorskip("tenacity", reason="lm-eval[api] is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # It would fetch a tokenizer; the ids are ours.
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    harness = LocalCompletionsAPI(
        base_url=f"{server.url}/completions",
        model="demo",
        tokenizer_backend=None,
        tokenized_requests=True,
        batch_size=2,
    )
    model = server.state.pool.loaded[0].model
    pairs = [(model.encode(begin), model.encode(end, add_bos=False)) for begin, end in TEXTS]
    asked = [(("", ""), context, continuation) for context, continuation in pairs]
    harness.tokenizer, harness.tokenized_requests = model.tokenizer, True
    found = harness._loglikelihood_tokens(asked, disable_tqdm=True)
    for (context, continuation), (total, is_greedy) in zip(pairs, found):
        expected, greedy = scored(model, context, continuation)
        assert total == pytest.approx(expected, abs=1e-9)
        assert is_greedy == greedy


def test_a_prompt_without_a_reply(server):
    """Older versions of the harness ask for no token at all."""
    ids = server.state.pool.loaded[0].model.encode("The sky is blue")
    status, body = server.post("/v1/completions", as_harness(ids) | {"max_tokens": 0})
    assert status == 200
    assert len(body["choices"][0]["logprobs"]["tokens"]) == len(ids) == body["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 0
