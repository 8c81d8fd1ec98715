"""Anthropic's messages, by its own client, unmodified, and in raw HTTP."""

import json

import pytest
from fake_model import EOS, ByteTokenizer, FakeSequence, MarkedTools, Replies
from local_server import demo, events_of, serving
from test_served_thinking import CALL, OpeningTemplate, thinker

from tinychat.generate.model import Model
from tinychat.serve.messages_body import as_chat_body

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
anthropic = pytest.importorskip("anthropic", reason="Anthropic's client is not installed")

HELLO = [{"role": "user", "content": "Hello"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
WEATHER = {"name": "weather", "description": "Tells the weather.", "input_schema": CITY}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "additionalProperties": False}}


@pytest.fixture(scope="module")
def server():
    with serving(demo()) as found:
        yield found


def client_of(server, **options):
    base_url = server.url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=base_url, api_key="none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as found:
        yield found


def read(stream):
    """Return the message that a stream adds up to, by the client, once its events are found in order."""
    is_open, index, kinds, last = False, -1, [], None
    for event in stream:
        if event.type not in EVENTS:
            continue  # what the client adds of its own
        kinds.append(event.type)
        if event.type == "content_block_start":
            assert not is_open and event.index == index + 1
            is_open, index = True, event.index
        elif event.type.startswith("content_block"):
            assert is_open and event.index == index
            is_open = event.type != "content_block_stop"
        last = event
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert not is_open and last is not None
    return stream.get_final_message()


EVENTS = "message_start content_block_start content_block_delta content_block_stop message_delta message_stop".split()


def said(message):
    # Only the client adds `stop_details`.
    return {name: value for name, value in message.to_dict().items() if name not in ("id", "usage", "stop_details")}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "You are brief.", "extra_body": {"temperature": 1.0, "top_k": 20, "seed": 7}},
        {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "any"}, "max_tokens": 90},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 90},
        {"stop_sequences": ["a", "e"]},
        {"output_config": {"format": {"type": "json_schema", "schema": CITY}}, "max_tokens": 60},
    ],
)
def test_streamed_and_whole_messages_are_alike(client, fields):
    asked = {"model": "claude-of-some-kind", "max_tokens": 24, "messages": HELLO, **fields}
    whole = client.messages.create(**asked)
    assert isinstance(whole, anthropic.types.Message)
    # The client's accumulation drops nothing, and checks each event against its types.
    with client.messages.stream(**asked) as stream:
        streamed = read(stream)
    assert said(streamed) == said(whole)
    assert streamed.usage.output_tokens == whole.usage.output_tokens > 0
    counted = client.messages.count_tokens(
        **{name: asked[name] for name in ("model", "messages", "system", "tools", "tool_choice") if name in asked}
    )
    for usage in (whole.usage, streamed.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    if "tools" in fields:
        assert whole.stop_reason == "tool_use"
        assert whole.content[-1].type == "tool_use" and whole.content[-1].name in ("weather", "clock")
    elif "stop_sequences" in fields:
        assert (whole.stop_reason, whole.stop_sequence in ("a", "e")) == ("stop_sequence", True)
    elif "output_config" in fields:
        assert json.loads(whole.content[0].text)["city"] in ("Bonn", "Rome")
    else:
        assert whole.stop_reason in ("end_turn", "max_tokens") and whole.content[0].type == "text"


def test_events_on_the_wire(server):
    body = {"model": "m", "max_tokens": 3, "messages": HELLO, "stream": True}
    status, data = server.raw("POST", "/v1/messages", json.dumps(body))
    assert status == 200
    lines = [line for line in data.decode().split("\n") if line.startswith("event: ")]
    events = events_of(data.decode())
    for event in events:
        pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent).validate_python(event)
    assert [line.removeprefix("event: ") for line in lines] == [event["type"] for event in events]
    expected = ["message_start", "content_block_start", *["content_block_delta"] * (len(events) - 5)]
    assert [event["type"] for event in events] == [*expected, "content_block_stop", "message_delta", "message_stop"]


def test_the_same_text_as_a_chat_completion(server):
    messages = [{"role": "user", "content": "Tell me a story."}]
    fields = {"max_tokens": 30, "temperature": 0.8, "seed": 3}
    _, ours = server.post("/v1/messages", {"messages": messages, "system": "You are brief.", **fields})
    asked = [{"role": "system", "content": "You are brief."}, *messages]
    _, openai = server.post("/v1/chat/completions", {"messages": asked, **fields})
    anthropic.types.Message.model_validate(ours)
    assert ours["content"][0]["text"] == openai["choices"][0]["message"]["content"]


def test_a_call_its_result_and_thoughts_come_back():
    model = thinker("I look it up.</think>" + CALL, "I know.</think>Sunny.")
    asked = {"model": "m", "max_tokens": 300, "tools": [WEATHER], "thinking": {"type": "adaptive"}}
    with serving(model) as server, client_of(server) as client:
        with client.messages.stream(messages=HELLO, **asked) as stream:
            first = read(stream)
        thought, call = first.content
        assert (thought.type, thought.thinking, bool(thought.signature)) == ("thinking", "I look it up.", True)
        assert (call.type, call.name, call.input, first.stop_reason) == (
            "tool_use", "weather", {"city": "Bonn"}, "tool_use",
        )  # fmt: skip
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sun"}]}
        messages = [*HELLO, {"role": "assistant", "content": first.content}]
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "Well?"}]})
        second = client.messages.create(messages=messages, **asked)
    assert [block.type for block in second.content] == ["thinking", "text"]
    assert second.content[1].text.strip() == "Sunny."


def test_thinking_is_switched_off():
    template = OpeningTemplate()
    model = thinker("Yes.", template=template)
    with serving(model) as server, client_of(server) as client:
        asked = {"model": "m", "max_tokens": 300, "messages": HELLO, "thinking": {"type": "disabled"}}
        assert [block.type for block in client.messages.create(**asked).content] == ["text"]
    assert template.seen[-1]["enable_thinking"] is False


def test_bodies_are_translated():
    blocks = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=5f3;"}]
    blocks += [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "B"},
    ]
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bonn"}}
    results = [{"type": "tool_result", "tool_use_id": "call_1", "content": "Sun", "is_error": False}]
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": blocks,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, call]},
            {"role": "user", "content": results},
        ],
        "tools": [WEATHER | {"cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "me"},
        "stream": True,
    }
    function = {"name": "weather", "arguments": {"city": "Bonn"}}
    assert as_chat_body(body) == {
        "model": "m",
        "max_tokens": 5,
        "messages": [
            {"role": "system", "content": "Be brief.\nB"},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "Sun"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "weather", "description": "Tells the weather.", "parameters": CITY},
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning_effort": "medium",
        "think_budget": 1024,
        "stream": True,
    }


def test_thoughts_have_a_budget():
    with serving(thinker("Hm.</think>Yes.")) as found, client_of(found) as client:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        message = client.messages.create(model="fake", messages=HELLO, max_tokens=2048, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_a_reply_goes_on_behind_its_beginning(client):
    message = client.messages.create(
        model="demo", messages=[*HELLO, {"role": "assistant", "content": "Once upon"}], max_tokens=8
    )
    longer = client.messages.create(model="demo", messages=HELLO, max_tokens=8)
    assert 0 < message.usage.input_tokens and message.content[0].text != longer.content[0].text


def test_models_and_overflows_are_told_in_the_form_of_the_api(client):
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.models.retrieve("other")
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 1024 maximum"):
        client.messages.create(model="demo", messages=[{"role": "user", "content": "word " * 3000}], max_tokens=8)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "all"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
    ],
)
def test_errors_name_the_field_in_the_form_of_the_api(client, fields, named):
    asked = {"max_tokens": 5, "messages": HELLO, **fields}
    with pytest.raises(anthropic.BadRequestError) as error:
        client.post("/v1/messages", body={name: value for name, value in asked.items() if value}, cast_to=dict)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert named in error.value.body["error"]["message"]


def test_the_key_is_asked_for_by_its_header():
    model = Model(FakeSequence(Replies("Yes.")), ByteTokenizer(), OpeningTemplate(), frozenset({EOS}), "fake")
    model.tool_template = MarkedTools(model)
    with serving(model, keys=("secret",)) as server:
        asked = {"model": "m", "max_tokens": 5, "messages": HELLO}
        with client_of(server) as client, pytest.raises(anthropic.AuthenticationError) as error:
            client.messages.create(**asked)
        assert error.value.body["error"]["type"] == "authentication_error"
        with client_of(server).with_options(api_key="secret") as client:
            assert client.messages.create(**asked).role == "assistant"


def test_models_are_listed_for_the_client(client):
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == ("demo", "model", "demo")


def test_the_prompt_is_read_once(client):
    system = "You know all about harbours and ships. " * 20
    asked = {"model": "m", "max_tokens": 2, "system": system, "tools": [WEATHER], "messages": HELLO}
    client.messages.create(**asked)
    usage = client.messages.create(**asked | {"messages": [{"role": "user", "content": "And now?"}]}).usage
    assert usage.cache_read_input_tokens > 10 * usage.input_tokens
