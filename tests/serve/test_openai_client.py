"""OpenAI's own client, unmodified, against the server."""

import asyncio
import json

import pytest
from fake_model import Replies, fake_model
from local_server import demo, serving

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
Completion = openai.types.Completion
ChatCompletion, ChatCompletionChunk = openai.types.chat.ChatCompletion, openai.types.chat.ChatCompletionChunk

HELLO = [{"role": "user", "content": "Hello"}]
SKY = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Why is the sky blue?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Bonn", "Köln"]}}} | {
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": CITY}}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "additionalProperties": False}},
}
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "maximum": 99}},
} | {
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture
def chat(client):
    """Return a function that asks for a chat completion."""

    def ask(messages=HELLO, **fields):
        return client.chat.completions.create(model="demo", messages=messages, **fields)

    return ask


def joined(chunks):
    """Return contents, calls, reasons and log-probabilities that the chunks of a stream add up to, by choice."""
    choices = {}
    for chunk in chunks:
        for choice in chunk.choices:
            found = choices.setdefault(choice.index, {"content": "", "calls": [], "reasons": [], "logprobs": []})
            found["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.id is not None:
                    assert call.index == len(found["calls"])
                    found["calls"].append([call.id, call.function.name, ""])
                found["calls"][call.index][2] += call.function.arguments
            found["logprobs"] += choice.logprobs.content if choice.logprobs else []
            found["reasons"] += [choice.finish_reason] if choice.finish_reason else []
    return [choices[index] for index in sorted(choices)]


def whole(completion):
    """Return the same of an answer that came at once."""
    return [
        {
            "content": choice.message.content or "",
            "calls": [
                [call.id, call.function.name, call.function.arguments] for call in choice.message.tool_calls or ()
            ],
            "reasons": [choice.finish_reason],
            "logprobs": choice.logprobs.content if choice.logprobs else [],
        }
        for choice in completion.choices
    ]


VARIANTS = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 5, "top_p": 0.9},
    "stop": {"stop": ["help", "do"]},
    "two choices": {"n": 2, "temperature": 0.8, "seed": 5},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "no top logprobs": {"logprobs": True},
    "penalties": {"frequency_penalty": 1.0, "presence_penalty": -0.5},
    "bias": {"logit_bias": {"20": -100, "30": 1}},
    "json object": {"response_format": {"type": "json_object"}, "max_completion_tokens": 30},
    "json schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
    "required": {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
    "auto": {"tools": [WEATHER]},
    "none": {"tools": [WEATHER], "tool_choice": "none"},
    "effort": {"reasoning_effort": "low"},
    "others": {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_streamed_and_not(server, chat, name):
    fields = {"temperature": 0, "max_completion_tokens": 40} | VARIANTS[name]
    completion = chat(**fields)
    ChatCompletion.model_validate(completion.model_dump(), strict=True)
    chunks = list(chat(**fields, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == whole(completion)
    assert all(reason for choice in whole(completion) for reason in choice["reasons"])
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(usages) == 1
    assert chunks[-1].choices == []
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(usages[0], count) == getattr(completion.usage, count)
    extra = fields.pop("extra_body", {})
    raw = server.chunks("/v1/chat/completions", {"model": "demo", "messages": HELLO, **fields, **extra})
    for chunk in raw:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert {chunk["id"] for chunk in raw} == {raw[0]["id"]}
    assert raw[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_what_the_fields_do(chat):
    plain = chat(temperature=0, max_tokens=40).choices[0]
    assert (plain.message.content, plain.finish_reason) == ("Hello there! What can I do for you?", "stop")
    stopped = chat(temperature=0, stop="can").choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("Hello there! What ", "stop")
    for name in ("max_tokens", "max_completion_tokens"):
        cut = chat(temperature=0, **{name: 3})
        assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("Hello there!", "length")
        assert cut.usage.completion_tokens == 3
    first, second = chat(n=2, temperature=1.5, seed=7, max_tokens=20).choices
    alone = [chat(temperature=1.5, seed=seed, max_tokens=20).choices[0].message.content for seed in (7, 8)]
    assert [first.message.content, second.message.content] == alone
    assert alone[0] != alone[1]
    (token,) = chat(temperature=0, max_tokens=1, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert (token.token, bytes(token.bytes)) == ("Hello", b"Hello")
    assert token.logprob == token.top_logprobs[0].logprob > token.top_logprobs[1].logprob
    assert chat(temperature=0, max_tokens=1, logit_bias={"0": 100}).choices[0].message.content != "Hello"


def test_a_bias_takes_the_first_word_away(server, chat):
    (model,) = server.state.pool.loaded
    (hello,) = model.model.encode("Hello", add_bos=False)
    biased = chat(temperature=0, max_tokens=1, logit_bias={str(hello): -100}).choices[0].message.content
    assert biased == "Hi"


def test_schemas_hold(chat):
    person = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    found = json.loads(chat(SKY, temperature=1, seed=3, response_format=person).choices[0].message.content)
    assert found["name"] in ("Ada", "Bob")
    assert type(found["age"]) is int
    text = chat(temperature=1, seed=4, max_tokens=200, response_format={"type": "json_object"}).choices[0]
    assert text.message.content.startswith("{")


def test_required_and_named_calls_fit_their_schemas(chat):
    for seed in range(5):
        fields = {"tools": [WEATHER, CLOCK], "temperature": 1.0, "seed": seed}
        choice = chat(**fields, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "clock" else arguments["city"] in ("Bonn", "Köln")
        choice = chat(**fields, tool_choice={"type": "function", "function": {"name": "weather"}}).choices[0]
        assert [call.function.name for call in choice.message.tool_calls] == ["weather"]


def test_calls_and_results_go_back_into_the_conversation(chat):
    message = chat(tools=[WEATHER], tool_choice="required", temperature=0, parallel_tool_calls=False).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "12 degrees"} for call in message.tool_calls]
    answer = chat(
        [*HELLO, message.model_dump(exclude_none=True), *results], temperature=0, max_tokens=8, tools=[WEATHER]
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    # Without content the client leaves it out, or sends null.
    asked = message.model_dump() | {"content": None}
    assert chat([*HELLO, asked, *results], temperature=0, max_tokens=8, tools=[WEATHER]) is not None


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "fields", "content", "calls", "reason"),
    [
        (CALL, {}, "", 1, "tool_calls"),
        (f"Let me see.\n{CALL}\n{CALL}", {}, "Let me see.", 2, "tool_calls"),
        (f"Let me see.\n{CALL}\n{CALL}", {"parallel_tool_calls": False}, "Let me see.", 1, "tool_calls"),
        (CALL, {"tool_choice": "none"}, CALL, 0, "stop"),
        (CALL, {"tools": openai.omit}, CALL, 0, "stop"),
        ("<tool_call>nonsense</tool_call>", {}, "<tool_call>nonsense</tool_call>", 0, "stop"),
        (CALL, {"max_tokens": 58}, "", 1, "length"),
        (CALL, {"max_tokens": 20}, CALL[:20], 0, "length"),
    ],
)
def test_calls_that_a_model_writes_itself(reply, fields, content, calls, reason, stream):
    with serving(fake_model(Replies(reply, reply))) as server, connected(server) as client:
        found = client.chat.completions.create(
            **{"model": "demo", "messages": HELLO, "tools": [WEATHER], "stream": stream} | fields
        )
        (choice,) = joined(found) if stream else whole(found)
    assert choice["content"] == content
    assert len({call_id for call_id, _, _ in choice["calls"]}) == len(choice["calls"]) == calls
    assert all(
        json.loads(arguments) == {"city": "Bonn"} for _, name, arguments in choice["calls"] if reason != "length"
    )
    assert choice["reasons"] == [reason]


def test_calls_go_back_as_they_came(chat, client):
    """Clients add up the deltas of a stream, or parse a reply, and send all of that back."""
    calls = {}
    for chunk in chat(tools=[WEATHER], tool_choice="required", stream=True):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            found = calls.setdefault(call.index, call.model_dump())
            if found is not None and call.id is None:
                found["function"]["arguments"] += call.function.arguments
    asked = HELLO[0] | {"name": "Bob"}
    said = {"role": "assistant", "content": None, "tool_calls": [*calls.values()], "annotations": [], "refusal": None}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Sun"} for call in calls.values()]
    assert calls[0]["index"] == 0
    assert chat([asked, said, *results], max_tokens=4).usage.completion_tokens > 0
    with client.chat.completions.stream(
        model="demo", messages=HELLO, tools=[WEATHER], tool_choice="required"
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sun"}
    assert chat([asked, message, result], max_tokens=4).usage.completion_tokens > 0
    assert chat([asked, message.to_dict(), result], max_tokens=4).usage.completion_tokens > 0


def test_a_reply_is_calls_or_json(chat):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    reasons = set()
    for seed in range(8):
        (choice,) = chat(tools=[WEATHER], response_format=form, seed=seed, temperature=2.0, max_tokens=200).choices
        reasons.add(choice.finish_reason)
        if choice.finish_reason == "tool_calls":
            assert json.loads(choice.message.tool_calls[0].function.arguments)["city"] in ("Bonn", "Köln")
        else:
            assert choice.finish_reason == "length" or json.loads(choice.message.content)["name"] in ("Ada", "Bob")
    assert reasons >= {"stop"}
    (choice,) = chat(tools=[WEATHER], response_format=form, tool_choice="required").choices
    assert choice.finish_reason == "tool_calls"


def test_a_reply_goes_on_behind_its_beginning(server, chat):
    """As llama-server, Ollama and Anthropic do."""
    with_beginning = chat([*HELLO, {"role": "assistant", "content": "Once upon"}], max_tokens=8)
    model = server.state.pool.loaded[0].model
    ids = [*model.render_ids(HELLO), *model.encode("Once upon", add_bos=False)]
    assert with_beginning.usage.prompt_tokens == len(ids)
    assert with_beginning.choices[0].message.content == model.decode(model.generate(ids, max_tokens=8))


@pytest.mark.parametrize(
    "fields",
    [{"extra_body": {"continue_final_message": False}}, {"response_format": {"type": "json_object"}, "max_tokens": 40}],
)
def test_a_reply_begins_anew_where_that_is_asked_or_must_be(server, chat, fields):
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    found = chat(messages, **{"max_tokens": 8} | fields)
    model = server.state.pool.loaded[0].model
    assert found.usage.prompt_tokens == len(model.render_ids(messages))
    if "response_format" in fields:
        assert found.choices[0].message.content.lstrip().startswith("{")


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string", "format": "path"},
        {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3, "uniqueItems": True},
    ],
)
def test_keywords_that_cannot_be_held_are_left_out(chat, field):
    """Those of ordinary types: paths, secrets, sets."""
    schema = {"type": "object", "properties": {"a": field}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    (choice,) = chat(response_format=form, max_tokens=60).choices
    assert choice.message.content.lstrip().startswith("{")


def test_models_are_described_one_by_one(client):
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError, match="model 'other' not found"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": -1, "max_tokens": -1, "stop": ["e"]},
        {"extra_body": {"top_k": -1, "repeat_last_n": -1, "grammar": "", "min_keep": 0, "lora": [], "n_probs": 0}},
        {"extra_body": {"repetition_penalty": 1.1, "skip_special_tokens": True, "provider": {}, "usage": {}}},
        {"extra_body": {"reasoning": {"effort": "low"}, "enable_thinking": False, "ignore_eos": False}},
        {"top_logprobs": 0, "extra_body": {"n_predict": 4, "samplers": ["top_k"], "typical_p": 1.0, "mirostat": 0}},
    ],
)
def test_values_of_other_servers_are_taken(chat, fields):
    assert chat(**{"max_tokens": 4, **fields}).usage.completion_tokens > 0


def test_an_overflow_is_told_in_words_that_clients_know(chat):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as error:
        chat([{"role": "user", "content": "word " * 3000}])
    assert error.value.code == "context_length_exceeded"


def test_a_strict_function_is_held_to_its_schema():
    reply = 'Well: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    cities = {}
    for name, tool in (("free", WEATHER), ("strict", strict)):
        with serving(fake_model(Replies(reply))) as server, connected(server) as client:
            asked = client.chat.completions.create(model="demo", messages=HELLO, tools=[tool], max_tokens=200)
            message = asked.choices[0].message
            cities[name] = json.loads(message.tool_calls[0].function.arguments)["city"]
            assert message.content == "Well:"
    assert cities["free"] == "Rome"
    assert cities["strict"] in ("Bonn", "Köln")


def connected(server, key="none"):
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=60)


def test_completions(server, client):
    fields = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 12}
    plain = client.completions.create(**fields)
    Completion.model_validate(plain.model_dump(), strict=True)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == plain.choices[0].text
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == plain.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )
    for raw in server.chunks("/v1/completions", {**fields, "logprobs": 2}):
        for choice in raw["choices"]:
            # The package's type has no chunk of a stream that goes on; OpenAI's own are null there, too.
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        Completion.model_validate(raw, strict=True)
    (model,) = server.state.pool.loaded
    ids = model.model.encode("Once upon a time")
    as_ids = client.completions.create(**fields | {"prompt": [ids, ids]}, n=2)
    assert [choice.text for choice in as_ids.choices] == [plain.choices[0].text] * 4
    assert as_ids.usage.prompt_tokens == 2 * len(ids)
    assert as_ids.usage.completion_tokens == 4 * plain.usage.completion_tokens
    echoed = client.completions.create(**fields, echo=True).choices[0].text
    assert echoed == f"Once upon a time{plain.choices[0].text}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
        ({"messages": []}, None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_errors_name_the_field(chat, fields, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat(**fields)
    if param is not None:
        assert error.value.param == param
    assert "\n" not in error.value.body["message"]


def test_other_errors_are_the_clients_own(server, client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="demo", prompt="word " * 20_000)
    assert error.value.code == "context_length_exceeded"
    assert error.value.body["n_prompt_tokens"] > error.value.body["n_ctx"]
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="a")
    with serving(demo(), keys=("right",)) as closed:
        with connected(closed, "wrong") as wrong, pytest.raises(openai.AuthenticationError):
            wrong.models.list()
        with connected(closed, "right") as right:
            assert [model.id for model in right.models.list()] == ["demo"]


def test_the_asynchronous_client(server):
    async def talk():
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            create = client.chat.completions.create
            fields = {"model": "demo", "temperature": 0, "max_tokens": 20}
            several = [create(messages=messages, **fields) for messages in (HELLO, SKY, HELLO)]
            first, sky, again = await asyncio.gather(*several)
            stream = await create(messages=SKY, stream=True, **fields)
            chunks = [chunk async for chunk in stream]
            async with client.chat.completions.stream(messages=HELLO, model="demo", temperature=0) as events:
                final = await events.get_final_completion()
        return first, sky, again, chunks, final

    first, sky, again, chunks, final = asyncio.run(talk())
    assert whole(first) == whole(again) == whole(final)
    assert joined(chunks) == whole(sky)


def test_parsed_models(client):
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=8)
        likes_tea: bool

    parsed = client.chat.completions.parse(model="demo", messages=HELLO, response_format=Person, temperature=0)
    assert isinstance(parsed.choices[0].message.parsed, Person)
