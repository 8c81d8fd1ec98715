import pytest

from tinychat.conversation.messages import Message, ToolCall, as_messages, check_conversation, exchanges, open_calls
from tinychat.errors import FieldError

CALL = {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
OTHER = {"id": "b2", "type": "function", "function": {"name": "time", "arguments": "{}"}}
ASKED = {"role": "user", "content": "Is it warm?"}
CALLS = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, OTHER], "reasoning": "Who knows?"}
RESULT = {"role": "tool", "content": "12 degrees", "tool_call_id": "a1", "name": "weather"}
RESULTS = [RESULT, {"role": "tool", "content": "noon", "tool_call_id": "b2"}]
TALK = [ASKED, CALLS, *RESULTS, {"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_a_plain_message_comes_back_as_it_was(role):
    messages = [{"role": role, "content": ""}]
    (message,) = as_messages(messages)
    assert message == Message(role, "")
    assert message.as_dict() == messages[0]


def test_calls_results_and_thoughts_come_back_as_they_were():
    messages = as_messages(TALK)
    assert messages[1].tool_calls[0] == ToolCall("a1", "weather", '{"city": "Bern"}')
    assert [message.as_dict() for message in messages] == TALK
    assert messages[1].text == 'Who knows?\n\nI look.\n\nweather({"city": "Bern"})\n\ntime({})'


def test_other_ways_to_write_the_same():
    """Null for what is not there, no content beside calls, arguments as an object, thoughts under their other name."""
    call = {"id": "a1", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    written = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "reasoning_content": "Hm."}
    (message,) = as_messages([written])
    assert message == Message(
        "assistant", "", False, (ToolCall("a1", "weather", '{"city": "Zürich"}'),), reasoning="Hm."
    )


def called(**changes):
    return [ASKED, {"role": "assistant", "tool_calls": [CALL | changes]}]


def function(**changes):
    return called(function={"name": "weather", "arguments": "{}"} | changes)


def test_keys_that_other_programs_add_change_nothing():
    asked = ASKED | {"name": "Bob", "images": [], "cache_control": {"type": "ephemeral"}}
    calls = CALLS | {"annotations": [], "refusal": None, "parsed": None, "reasoning_details": [{"text": "x"}]}
    calls["tool_calls"] = [call | {"index": 0, "parsed_arguments": {}} for call in CALLS["tool_calls"]]
    results = [result | {"is_error": False} for result in RESULTS]
    assert as_messages([asked, calls, *results]) == as_messages([ASKED, CALLS, *RESULTS])
    (empty,) = as_messages([ASKED, CALLS, RESULT | {"content": None}, RESULTS[1]])[2:3]
    assert empty.content == ""


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "messages must be a list"),
        ({}, "messages must be a list"),
        ([ASKED] * 100_001, "messages must be at most 100000"),
        (["hi"], "messages[0] must be an object"),
        ([{"content": "hi"}], "messages[0].role must be one of system, developer, user, assistant, tool"),
        ([{"role": ["user"], "content": "hi"}], "messages[0].role must be one of"),
        ([ASKED, {"role": "User", "content": "hi"}], "messages[1].role must be one of"),
        ([{"role": "user"}], "messages[0].content must be a text"),
        ([{"role": "assistant", "content": None}], "messages[0].content must be a text"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0] must be a text or an image"),
        ([{"role": "user", "content": 5}], "messages[0].content must be a text"),
        ([{"role": "assistant", "content": "", "reasoning": 5}], "messages[0].reasoning must be a text"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls must be a list of at most 128 calls"),
        ([{"role": "assistant", "tool_calls": [CALL] * 129}], "messages[0].tool_calls must be a list of at most 128"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}], "messages[0].tool_calls must have ids that differ"),
        (called(id=""), "messages[1].tool_calls[0].id must be a text of 1 to 256 characters"),
        (called(id=7), "messages[1].tool_calls[0].id must be a text"),
        (called(type="retrieval"), "messages[1].tool_calls[0].type must be function"),
        (called(function="weather"), "messages[1].tool_calls[0].function must be an object with name, arguments"),
        (function(name="x" * 257), "messages[1].tool_calls[0].function.name must be a text of 1 to 256"),
        (function(arguments=["Bern"]), "messages[1].tool_calls[0].function.arguments must be a text"),
        (function(arguments={"x": {1}}), "messages[1].tool_calls[0].function.arguments must be a JSON object, or its"),
        ([ASKED, RESULT], "messages[1].tool_call_id must be that of a call before it without a result"),
        ([ASKED, CALLS, *RESULTS, RESULT], "messages[4].tool_call_id must be that of a call before it without"),
        ([ASKED, CALLS, RESULT, ASKED], "messages[3].role must be tool: the call 'b2' has no result yet"),
        ([ASKED, CALLS, CALLS], "messages[2].role must be tool: the call 'a1' has no result yet"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id must be a text of 1 to 256 characters"),
        ([RESULT | {"name": 3}], "messages[0].name must be a text"),
    ],
)
def test_what_is_wrong_is_named(messages, complaint):
    with pytest.raises(FieldError) as caught:
        as_messages(messages)
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_arguments_without_end_are_refused():
    arguments = {}
    arguments["x"] = arguments
    with pytest.raises(FieldError, match="must be a JSON object"):
        as_messages(function(arguments=arguments))


def test_texts_are_well_formed():
    (asked, calls) = as_messages([ASKED | {"content": "\ud83d"}, called(id="\udce9")[1]])
    assert (asked.content, calls.tool_calls[0].id) == ("\ufffd", "\ufffd")


def test_an_exchange_is_a_message_of_the_user_and_all_that_follows():
    talk = as_messages([*TALK, ASKED, ASKED, *TALK[1:]])
    assert exchanges(talk) == [0, 5, 6]
    assert exchanges([]) == []


def test_open_calls_are_those_without_a_result():
    talk = as_messages(TALK)
    assert [[call.id for call in open_calls(talk, end)] for end in range(6)] == [[], [], ["a1", "b2"], ["b2"], [], []]
    assert [call.id for call in open_calls(talk[:3])] == ["b2"]


def test_a_conversation_begins_with_its_user():
    check_conversation([])
    check_conversation(as_messages(TALK[:2]))
    with pytest.raises(FieldError, match=r"^messages\[0\]\.role must be user: a system prompt stands apart"):
        check_conversation([Message("system", "Be kind.")])
    with pytest.raises(FieldError, match=r"^messages\[1\]\.tool_call_id"):
        check_conversation(as_messages(TALK[:1]) + as_messages(TALK)[2:])
