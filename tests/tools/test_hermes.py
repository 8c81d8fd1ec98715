"""Calls in the format of Hermes, found while a reply is written."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools import call_texts

from tinychat.tools.events import CallArguments, CallBegin, CallText
from tinychat.tools.formats.known import HERMES

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
CLOCK = '<tool_call>{"name":"clock","arguments":{}}</tool_call>'


def found(text, cuts=()):
    """Return the events of a text that comes in parts, those of one kind in a row joined, and the parser."""
    return call_texts.found(HERMES, (), text, cuts)


def everywhere(text):
    """Return the events of a text, wherever it is split, and how many calls are whole."""
    events, parser = call_texts.everywhere(HERMES, (), text)
    return events, parser.ended


def test_text_before_between_and_after_two_calls():
    events, ended = everywhere(f"Let me look.\n\n{WEATHER}\nAnd then:\n{CLOCK}\n\nDone.")
    assert events == [
        CallText("Let me look."),
        CallBegin(0, "weather"),
        CallArguments(0, '{"city": "Köln", "days": 2}'),
        CallText("And then:"),
        CallBegin(1, "clock"),
        CallArguments(1, "{}"),
        CallText("Done."),
    ]
    assert ended == 2


def test_calls_behind_each_other_have_no_text_between_them():
    events, ended = everywhere(f"{WEATHER}\n{CLOCK}\n")
    assert [type(event) for event in events] == [CallBegin, CallArguments, CallBegin, CallArguments]
    assert ended == 2


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"city": "Bonn"}, "name": "weather"}',
        '{"name": "weather", "parameters": {"city": "Bonn"}}',
        '{"name": "weather", "arguments": "{\\"city\\": \\"Bonn\\"}"}',
        '{"id": 7, "name": "weather", "arguments": {"city": "Bonn"}}',
        '  {"name":"weather","arguments":{"city": "Bonn"}, "id": "x"}  ',
        '{"description": "%s", "arguments": {"city": "Bonn"}, "name": "weather"}' % ("long " * 400),
    ],
)
def test_other_forms_of_a_call(call):
    events, ended = everywhere(f"<tool_call>{call}</tool_call>")
    assert events[0] == CallBegin(0, "weather")
    assert json.loads(events[1].text) == {"city": "Bonn"}
    assert len(events) == 2
    assert ended == 1


@pytest.mark.parametrize("call", ['{"name": "clock"}', '{"name": "clock", "arguments": null}'])
def test_a_call_without_arguments(call):
    assert everywhere(f"<tool_call>{call}</tool_call>") == ([CallBegin(0, "clock"), CallArguments(0, "{}")], 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": {"b": [{"c": "}"}, [], {}]}, "d": "]{["},
        {"text": 'He said "no" \\ and \t left\n{'},
        {"tag": "<tool_call> and </tool_call>", "n": [-0.5e-3, 10, True, None]},
        {"": "\ud800 \U0001f600"},
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_braces_tags_and_escapes_in_arguments(arguments, ascii_only):
    spelled = json.dumps(arguments, ensure_ascii=ascii_only)
    events, ended = everywhere(f'<tool_call>{{"name": "f", "arguments": {spelled}}}</tool_call> end')
    assert events == [CallBegin(0, "f"), CallArguments(0, spelled), CallText(" end")]
    assert ended == 1


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>no JSON</tool_call> more",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "nonsense"}</tool_call>',
        '<tool_call>{"name": "\\d", "arguments": {}}</tool_call>',
        '<tool_call>["f"]</tool_call>',
        '<tool_call>{"name": "f"',
        "<tool_call>",
        "<tool_cal",
        "a < b <tool",
        "see \n <tool_call>",
        "see \n <tool_call>{}</tool_call>",
        'see \n <tool_call> {"a',
        "</tool_call> alone",
        "spaces at the end \n ",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": NaN}"}</tool_call>',
    ],
)
def test_what_is_no_call_stays_text(text):
    assert everywhere(text) == ([CallText(text)], 0)


def test_a_call_behind_a_tag_that_begins_none():
    events, ended = everywhere(f"The tag <tool_call> begins a call: {CLOCK}")
    assert events[0] == CallText("The tag <tool_call> begins a call:")
    assert events[1:] == [CallBegin(0, "clock"), CallArguments(0, "{}")]
    assert ended == 1


def test_arguments_that_are_no_json_end_before_it():
    events, ended = everywhere('<tool_call>{"name": "f", "arguments": {"a": tru, "b": 1}}</tool_call>')
    assert events == [CallBegin(0, "f"), CallArguments(0, '{"a": tru'), CallText(', "b": 1}}</tool_call>')]
    assert ended == 0


def test_line_ends_in_a_string_are_escaped():
    events, ended = everywhere('<tool_call>{"name": "write", "arguments": {"text": "one\n\ttwo"}}</tool_call>')
    assert json.loads(events[1].text) == {"text": "one\n\ttwo"}
    assert ended == 1


def test_half_a_pair_of_surrogates_can_be_sent():
    for call in (
        '{"name": "f\\ud800", "arguments": {"a": "\\ud800"}}',
        '{"arguments": {"a": "\\ud800"}, "name": "f\\ud800"}',
    ):
        (begin, arguments), _ = found(f"<tool_call>{call}</tool_call>")
        assert begin == CallBegin(0, "f?")
        assert json.loads(arguments.text.encode().decode()) == {"a": "\ud800"}


PARTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                WEATHER,
                CLOCK,
                "<tool_call>",
                "</tool_call>",
                '{"name": "f", "arguments": ',
                '{"name": "f",',
                "{",
                "}",
                '"',
                "\\",
                "\\u00",
                "[1, -",
                "tru",
                ": ",
                ", ",
                "\n",
                " ",
                "<",
                "text",
                "1e",
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=12,
)


@given(parts=PARTS, seed=st.integers(0, 1 << 30))
@settings(max_examples=600, deadline=None)
def test_any_split_gives_the_same_events(parts, seed):
    text = "".join(parts)
    whole, calls = found(text)
    draw = random.Random(seed)
    for cuts in (range(1, len(text)), sorted(draw.choices(range(len(text) + 1), k=5))):
        events, others = found(text, cuts)
        assert events == whole
        assert (others.count, others.ended) == (calls.count, calls.ended)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(
    arguments=st.dictionaries(st.text(), JSON, max_size=4),
    seed=st.integers(0, 1 << 30),
    indent=st.sampled_from([None, 1]),
)
@settings(max_examples=300, deadline=None)
def test_every_object_passes_and_each_prefix_can_be_completed(arguments, seed, indent):
    spelled = json.dumps(arguments, indent=indent, ensure_ascii=seed % 2 == 0)
    text = f'<tool_call>{{"name": "f", "arguments": {spelled}}}</tool_call>'
    cuts = sorted(random.Random(seed).choices(range(len(text) + 1), k=8))
    events, calls = found(text, cuts)
    assert events == [CallBegin(0, "f"), CallArguments(0, spelled)]
    assert calls.ended == 1
