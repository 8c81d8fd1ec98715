"""OpenAI's responses, by its own client, unmodified, and by the types of its events."""

import json

import pytest
from fake_model import Replies, fake_model
from local_server import demo, events_of, serving
from test_serve_clients import endless, served
from test_served_thinking import CALL, thinker

from tinychat.serve.api_error import ApiError
from tinychat.serve.response_store import ResponseStore, StoredResponse
from tinychat.serve.responses_body import as_chat_body

openai = pytest.importorskip("openai", reason="OpenAI's client is not installed")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
types = openai.types.responses
EVENT = pydantic.TypeAdapter(types.ResponseStreamEvent)

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Rome"]}}, "required": ["city"]}
CITY |= {"additionalProperties": False}
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": CITY,
    "strict": True,
}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "additionalProperties": False}}
PARTS = [{"type": "input_text", "text": "Hi"}]
MESSAGES = [{"role": "developer", "content": "B."}, {"role": "user", "content": PARTS}]
ALLOWED = {"type": "allowed_tools", "mode": "auto"}
PLACE = {"format": {"type": "json_schema", "name": "place", "schema": CITY}}


@pytest.fixture(scope="module")
def server():
    with serving(demo()) as found:
        yield found


@pytest.fixture(scope="module")
def client(server):
    with client_of(server) as found:
        yield found


def client_of(server):
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def events(server, body):
    """Return the events of a stream, each valid and in its place; and the response at the end."""
    status, data = server.raw("POST", "/v1/responses", json.dumps({**body, "stream": True}))
    assert status == 200, data
    found = events_of(data.decode())
    names = [line.removeprefix("event: ") for line in data.decode().split("\n") if line.startswith("event: ")]
    assert names == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENT.validate_python(event)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:2] == ["created", "in_progress"] and kinds[-1] in ("completed", "incomplete")
    check_items(found[2:-1], found[-1]["response"]["output"])
    return found[-1]["response"]


def check_items(found, output):
    """Compare the events of items, one after another, with the items at the end."""
    joined, done = [], []
    for event in found:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert len(joined) == len(done) == event["output_index"]
            joined.append("")
            continue
        assert event["output_index"] == len(joined) - 1 == len(done), event
        if kind == "output_item.done":
            done.append(event["item"])
        elif kind.endswith(".delta"):
            joined[-1] += event["delta"]
        elif kind.endswith("text.done"):
            assert event["text"] == joined[-1]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == joined[-1]
    assert done == output
    texts = [item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"] for item in output]
    assert texts == joined


def said(response):
    """Return the output without what differs from request to request."""
    items = [item if isinstance(item, dict) else item.to_dict() for item in response["output"]]
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "You are brief.", "temperature": 0.8, "seed": 7},
        {"input": MESSAGES},
        {"tools": [WEATHER, CLOCK], "tool_choice": "required", "max_output_tokens": 90},
        {"tools": [WEATHER, CLOCK], "tool_choice": {"type": "function", "name": "clock"}, "max_output_tokens": 90},
        {"text": PLACE, "max_output_tokens": 90},
        {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "store": False},
    ],
)  # fmt: skip
def test_streamed_and_whole_responses_are_alike(server, fields):
    body = {"model": "demo", "input": "Hello", "max_output_tokens": 24, **fields}
    streamed = events(server, body)
    status, whole = server.post("/v1/responses", body)
    assert status == 200
    types.Response.model_validate(whole)
    assert said(streamed) == said(whole)
    if "tools" in fields:
        assert whole["output"][0]["type"] == "function_call"
    if "text" in fields:
        assert json.loads(whole["output"][0]["content"][0]["text"])["city"] in ("Bonn", "Rome")
    _, counted = server.post("/v1/responses/input_tokens", body)
    assert counted == {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]}
    assert server.raw("GET", f"/v1/responses/{whole['id']}")[0] == (200 if body.get("store", True) else 404)


def test_the_client_goes_on_with_a_stored_response(client):
    told = {"model": "demo", "instructions": "You know all about harbours and ships. " * 8}
    first = client.responses.create(**told, input="Tell me a story.", max_output_tokens=12)
    assert first.status == "incomplete" and first.incomplete_details.reason == "max_output_tokens"
    asked = {**told, "input": "Go on.", "max_output_tokens": 8}
    with client.responses.stream(**asked, previous_response_id=first.id) as stream:
        *_, last = stream
    # Not the client's `get_final_response`: it knows of responses that are complete only.
    second = last.response
    turns = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": first.output_text}]
    alone = client.responses.create(**asked | {"input": [*turns, {"role": "user", "content": "Go on."}]})
    assert second.output_text == alone.output_text
    assert second.usage.input_tokens_details.cached_tokens > 64
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.type for item in items] == ["message"] * 3
    paged = list(client.responses.input_items.list(second.id, limit=2))
    assert [item.id for item in paged] == [item.id for item in reversed(items)]
    assert client.responses.input_tokens.count(model="demo", input="Hello").input_tokens > 0
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**asked, previous_response_id=first.id)
    assert error.value.code == "previous_response_not_found"


def test_the_same_text_as_a_chat_completion(server):
    fields = {"temperature": 0.8, "seed": 3}
    _, ours = server.post(
        "/v1/responses", {"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 30, **fields}
    )
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    _, chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 30, **fields})
    assert ours["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]


def test_thoughts_a_call_and_its_result():
    model = thinker("I look it up.</think>" + CALL, "I know.</think>Sunny.")
    with serving(model) as server:
        first = events(server, {"input": "Weather?", "tools": [WEATHER], "tool_choice": "auto"})
        thought, call = first["output"]
        assert thought["content"] == [{"type": "reasoning_text", "text": "I look it up."}]
        assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Bonn"})
        assert 0 < first["usage"]["output_tokens_details"]["reasoning_tokens"] < first["usage"]["output_tokens"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sun"}
        body = {"input": [result], "tools": [WEATHER], "previous_response_id": first["id"]}
        _, second = server.post("/v1/responses", body)
        assert [item["type"] for item in second["output"]] == ["reasoning", "message"]
        assert second["output"][1]["content"][0]["text"].strip() == "Sunny."


def test_a_response_that_the_server_cannot_end_has_failed():
    with served(endless()) as server, client_of(server) as client:
        stream = client.responses.create(model="endless", input="Hello", stream=True)
        events = []
        for event in stream:
            EVENT.validate_python(event.to_dict(), strict=True)
            events.append(event)
            if event.type == "response.output_text.delta":
                server.state.end_replies()
        last = events[-1]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.code == "server_error" and "ended" in last.response.error.message
        assert last.response.output[0].content[0].text.startswith("a")
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(last.response.id)


def test_a_reference_is_the_stored_item(server):
    body = {"tools": [CLOCK], "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 90}
    question = {"role": "user", "content": "What time is it?"}
    (call,) = server.post("/v1/responses", {"input": [question], **body})[1]["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12:30"}
    found = []
    for item in (call, {"type": "item_reference", "id": call["id"]}):
        _, answer = server.post("/v1/responses", {"input": [question, item, result], "max_output_tokens": 12})
        found.append((said(answer), answer["usage"]["input_tokens"]))
    assert found[0] == found[1]
    # The item itself is stored, not the reference.
    listed = json.loads(server.raw("GET", f"/v1/responses/{answer['id']}/input_items?order=asc")[1])["data"]
    assert listed[1] == call


def test_old_exchanges_make_room():
    model = fake_model(Replies("Yes."), context_size=400)
    turns = [{"role": role, "content": "word " * 20} for role in ("user", "assistant") * 4]
    body = {"input": [*turns, {"role": "user", "content": "Well?"}], "instructions": "Be brief."}
    with serving(model) as server:
        status, answer = server.post("/v1/responses", body)
        assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
        status, answer = server.post("/v1/responses", body | {"truncation": "auto"})
        assert status == 200 and 200 < answer["usage"]["input_tokens"] <= 300


def test_few_trials_find_how_many_exchanges_fit():
    model, trials = fake_model(Replies("Yes."), context_size=400), []
    render = model.template.render_ids
    model.template.render_ids = lambda *given, **named: trials.append(1) or render(*given, **named)
    body = {"input": [{"role": "user", "content": "x"}] * 1000, "truncation": "auto"}
    with serving(model) as server:
        status, answer = server.post("/v1/responses", body)
    # 149 exchanges of a mark and a letter, with a mark before and one behind them.
    assert (status, answer["usage"]["input_tokens"]) == (200, 300)
    assert len(trials) <= 12


def test_items_are_translated():
    items = [
        {"type": "message", "role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "clock", "arguments": "{}"},
        {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "12"}]},
        {"type": "function_call_output", "call_id": "call_2", "output": "13"},
        {"type": "function_call", "id": "fc_3", "call_id": "call_3", "name": "clock", "arguments": "{}"},
    ]
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
        for number in (1, 2, 3)
    ]
    assert as_chat_body({"input": items}, items)["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm", "tool_calls": calls[:2]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12"},
        {"role": "tool", "tool_call_id": "call_2", "content": "13"},
        {"role": "assistant", "content": "", "tool_calls": calls[2:]},
    ]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": 3}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference", "id": []}]}, "input[0].id"),
        ({"input": [{"type": "unheard_of", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
        ({"tools": [{"type": 5}]}, "tools[0]"),
        ({"background": True}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"conversation": "c"}, "conversation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "12"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}, *MESSAGES]}, "input"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tools": [CLOCK], "tool_choice": ALLOWED | {"tools": [CLOCK, WEATHER]}}, "tool_choice.tools"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"store": "no"}, "store"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"messages": [{"role": "user", "content": "Not this"}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_errors_name_the_field(client, fields, named):
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/responses", body={"input": "Hi", **fields}, cast_to=dict)
    assert error.value.param == named
    assert error.value.message.count("\n") == 0


def test_errors_count_the_items_that_were_sent(client):
    first = client.responses.create(model="demo", input=MESSAGES, max_output_tokens=2)
    wrong = [{"role": "user", "content": "Hi"}, {"type": "unheard_of", "id": "x"}]
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/responses", body={"input": wrong, "previous_response_id": first.id}, cast_to=dict)
    assert error.value.param == "input[1].type"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 0},
        {"metadata": {"a": "b"}},
        {"reasoning": {"effort": "max"}},
        {"tools": [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]},
        {"input": [{"type": "web_search_call", "id": "x"}, {"role": "user", "content": "Hello"}]},
    ],
)
def test_fields_that_change_nothing_here_are_taken(server, fields):
    body = {"input": "Hello", "max_output_tokens": 4}
    status, found = server.post("/v1/responses", {**body, **fields})
    assert status == 200
    assert said(found) == said(server.post("/v1/responses", body)[1])


def test_calls_of_free_tools_stay_in_the_conversation(server):
    """Where another model had called one: their texts are all that tells this one of the results."""
    items = [
        {"role": "user", "content": "Mend it."},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "Done!"},
    ]
    body = {"max_output_tokens": 1, "tools": [{"type": "custom", "name": "apply_patch"}]}
    counts = [server.post("/v1/responses", {**body, "input": items[:n]})[1]["usage"]["input_tokens"] for n in (1, 3)]
    assert counts[1] > counts[0] + len("Done!")
    status, found = server.post("/v1/responses", {**body, "input": items[:1], "tools": [{"type": "unheard_of"}]})
    assert status == 400 and found["error"]["param"].startswith("tools[0]")


def test_a_tool_of_theirs_may_not_be_required_here(server):
    """The choice is then the model's."""
    fields = {"input": "Hello", "max_output_tokens": 4}
    choice = {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}
    status, found = server.post("/v1/responses", fields | choice)
    assert status == 200 and said(found) == said(server.post("/v1/responses", fields)[1])


def test_only_allowed_tools_are_called(server):
    body = {"input": "Hello", "tools": [WEATHER, CLOCK], "max_output_tokens": 90, "temperature": 1.0}
    for seed in range(4):
        for name in ("weather", "clock"):
            choice = ALLOWED | {"mode": "required", "tools": [{"type": "function", "name": name}]}
            _, found = server.post("/v1/responses", {**body, "tool_choice": choice, "seed": seed})
            types.Response.model_validate(found)
            assert {item["name"] for item in found["output"]} == {name}


def test_items_are_listed_in_the_form_of_the_api(server):
    items = [
        *({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?", "id": "msg_1"}),
        {"role": "user", "content": PARTS},
        {"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "id": None, "call_id": "call_1", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "12"},
    ]
    _, made = server.post("/v1/responses", {"input": items, "max_output_tokens": 4})
    path = f"/v1/responses/{made['id']}"
    status, data = server.raw("GET", f"{path}/input_items?order=asc")
    assert status == 200
    listed = types.ResponseItemList.model_validate(json.loads(data)).data
    assert [type(item).__name__ for item in listed] == [
        *("ResponseInputMessageItem", "ResponseOutputMessage", "ResponseInputMessageItem"),
        *("ResponseReasoningItem", "ResponseFunctionToolCallItem", "ResponseFunctionToolCallOutputItem"),
    ]
    assert (listed[1].id, listed[1].content[0].text) == ("msg_1", "Yes?")
    page = json.loads(server.raw("GET", f"{path}/input_items?order=asc&limit=2&after=msg_1")[1])
    assert ([item["id"] for item in page["data"]][1:], page["has_more"]) == (["rs_1"], True)
    for query in ("input_items?limit=0", "input_items?limit=x", "input_items?order=up", "input_items?after=no"):
        assert server.raw("GET", f"{path}/{query}")[0] == 400
    status, data = server.raw("GET", f"{path}?stream=true")
    assert (status, json.loads(data)["error"]["param"]) == (400, "stream")


def stored(name, size=0):
    return StoredResponse([], [{"text": "x" * size}], {"id": name, "output": []})


def test_the_store_is_bounded():
    store = ResponseStore(most=2, most_bytes=1000)
    for name in "abc":
        store.add(stored(name))
    with pytest.raises(ApiError):
        store.get("a")
    assert store.get("b").response["id"] == "b"
    store.add(stored("d", 980))
    assert [name for name in "abcd" if name in store._stored] == []
    store.add(stored("e", 500))
    store.delete("e")
    assert store._bytes == 0


def test_a_stored_conversation_counts_as_a_whole():
    store, items = ResponseStore(most=100, most_bytes=10_000), []
    for number in range(20):
        store.add(StoredResponse(items, [{"text": "x" * 1000}], {"id": str(number), "output": []}))
        items = store.before(str(number)) if str(number) in store._stored else items
    held = [one for one, _ in store._stored.values()]
    assert sum(len(json.dumps([one.earlier, one.given, one.response])) for one in held) == store._bytes <= 10_000
