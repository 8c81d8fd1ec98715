"""The deltas of a chat completion's choice."""

import json
import random

import pytest
from fake_model import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.generate.logprobs import ScoredToken, TokenLogprobs
from tinychat.generate.reply import Delta
from tinychat.serve.chat_choice import ChatChoice, ChoiceCalls, joined_message
from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.known import GEMMA, HARMONY, HERMES, INKLING, KIMI, LFM2, MUSE, QWEN_CODER

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<think>"}}\n</tool_call>'


def choice(opens_thinking=False, calls=True, is_parallel=True):
    found = ChoiceCalls(HERMES, ToolChoice((Tool("f"),), is_parallel=is_parallel), "salt") if calls else None
    return ChatChoice(ByteTokenizer(), opens_thinking, found)


def message(text, cuts=(), **options):
    """Return the message of a text that comes in parts, and why its choice ends."""
    found, ends = choice(**options), [*sorted(cuts), len(text)]
    deltas = []
    for start, end in zip([0, *ends], ends):
        deltas += [fields for fields, _ in found.add(Delta(text[start:end]))]
    deltas += found.finish()
    return joined_message(deltas), found.finish_reason("stop")


def test_thoughts_text_and_calls():
    text = f"<think>\nHm <tool_call>.\n</think>\n\nSo:\n{CALL}"
    function = {"name": "f", "arguments": '{"a": "<think>"}'}
    expected = {
        "role": "assistant",
        "content": "So:",
        "reasoning_content": "Hm <tool_call>.\n",
        "tool_calls": [{"id": "call_salt0000", "type": "function", "function": function}],
    }
    assert message(text) == (expected, "tool_calls")
    assert message(text.removeprefix("<think>\n"), opens_thinking=True) == (expected, "tool_calls")
    for cut in range(1, len(text)):
        assert message(text, [cut]) == (expected, "tool_calls")


def test_only_the_first_call_where_they_are_not_parallel():
    two = f"{CALL}\n{CALL}"
    assert len(message(two)[0]["tool_calls"]) == 2
    assert len(message(two, is_parallel=False)[0]["tool_calls"]) == 1


def test_a_reply_without_text():
    assert message("") == ({"role": "assistant", "content": ""}, "stop")
    assert message(CALL)[0]["content"] is None
    assert message(CALL, calls=False) == ({"role": "assistant", "content": CALL}, "stop")


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, "<tool_call>", "text", "\n", " ", "<", "{"]), max_size=8
    ),
    opens=st.booleans(),
    calls=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=500, deadline=None)
def test_any_split_gives_the_same_message(parts, opens, calls, seed):
    text = "".join(parts)
    options = {"opens_thinking": opens, "calls": calls}
    cuts = random.Random(seed).choices(range(len(text) + 1), k=5)
    assert message(text, cuts, **options) == message(text, **options) == message(text, range(len(text)), **options)


@pytest.mark.parametrize(
    ("reason", "said"),
    [("stop", "stop"), ("stop_string", "stop"), ("length", "length"), ("context", "length"), ("loop", "length")]
    + [("interrupted", "stop"), (None, "stop")],
)
def test_reasons_in_openais_words(reason, said):
    assert choice().finish_reason(reason) == said


def test_a_call_that_is_cut_or_followed_by_a_cut_is_no_end_by_calls():
    found = choice()
    list(found.add(Delta(CALL)))
    assert [found.finish_reason(reason) for reason in ("stop", "stop_string", "length")] == ["tool_calls"] * 2 + [
        "length"
    ]
    found = choice()
    list(found.add(Delta(CALL[:50])))
    assert found.finish_reason("stop") == "stop"


def test_log_probabilities_come_once_with_their_delta():
    scored = TokenLogprobs(ScoredToken(200, -0.5), (ScoredToken(65, -0.4),))
    found = choice()
    # Held back: half of a character, or of a tag.
    (fields, logprobs), *rest = found.add(Delta("", (200,), (scored,)))
    assert (fields, rest) == ({"content": ""}, [])
    assert logprobs["content"] == [
        {
            "token": "�",
            "logprob": -0.5,
            "bytes": [200],
            "top_logprobs": [{"token": "A", "logprob": -0.4, "bytes": [65]}],
        }
    ]
    several = list(found.add(Delta(f"a\n{CALL}", (200,), (scored,))))
    assert [one is None for _, one in several] == [False] + [True] * (len(several) - 1)
    assert len(several) > 2
    assert json.dumps(several)


def test_calls_of_other_formats():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    for form in (KIMI, QWEN_CODER, LFM2, GEMMA):
        found = ChatChoice(ByteTokenizer(), False, ChoiceCalls(form, ToolChoice((Tool("f", "", schema),)), "salt"))
        text = "So: " + form.spell(ToolCall("functions.f:0", "f", '{"n": 5, "s": "5"}'))
        deltas = [fields for letter in text for fields, _ in found.add(Delta(letter))] + [*found.finish()]
        message = joined_message(deltas)
        assert message["content"] == "So:"
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"n": 5, "s": "5"}'}
        assert call["id"] == ("functions.f:0" if form is KIMI else "call_salt0000")
        assert found.finish_reason("stop") == "tool_calls"


MESSAGES = {
    HARMONY: ("<|channel|>analysis<|message|>Hm.{}<|channel|>final<|message|>So.", "<|end|><|start|>assistant"),
    MUSE: (" to=self<|message|>Hm.{} to=user<|message|>So.", "<|eom|><|start|>assistant"),
    INKLING: ("<|content_thinking|>Hm.{}<|content_text|>So.", "<|end_message|><|message_model|>"),
}


@pytest.mark.parametrize("form", MESSAGES, ids=lambda form: form.name)
@pytest.mark.parametrize("calls", [0, 1])
def test_thoughts_in_messages_are_reasoning(form, calls):
    said, following = MESSAGES[form]
    text = said.format(following) + calls * f"{following}{form.spell(ToolCall('id', 'f', '{}'))}"
    found = ChatChoice(ByteTokenizer(), False, ChoiceCalls(form, ToolChoice((Tool("f"),)), "salt"))
    deltas = [fields for letter in text for fields, _ in found.add(Delta(letter))] + [*found.finish()]
    message = joined_message(deltas)
    assert [call["function"] for call in message.pop("tool_calls", [])] == [{"name": "f", "arguments": "{}"}] * calls
    assert message == {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}
