"""Calls in the formats of all families: what is written is read back, wherever the text is split."""

import json
import keyword
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tools.call_texts import FORMATS, calls_of, everywhere, found, spelled

from tinychat.tools.definitions import Tool
from tinychat.tools.events import CallArguments, CallBegin, CallText
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.known import HERMES
from tinychat.tools.formats.named import NamedFormat
from tinychat.tools.formats.tagged import typed_value

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "deep": {"type": "object"},
        "list": {"type": "array"},
        "nothing": {"type": ["null", "number"]},
    },
}
WEATHER, CLOCK = Tool("get_weather", "", SCHEMA), Tool("clock")
ARGUMENTS = {
    "city": 'Zürich, "old" town (a=[b]) \\ {c:d}',
    "days": -2,
    "exact": True,
    "deep": {"inner": ["x, y", None, 1.5], "more": {}},
    "list": [[], "]", False],
    "nothing": None,
}
CALLS = [("get_weather", ARGUMENTS), ("clock", {}), ("get_weather", {"city": "12"})]

every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
def test_what_is_written_is_read_back_wherever_it_is_split(name):
    form = FORMATS[name]
    text = spelled(form, CALLS)
    if not form.opening.startswith("<|python_tag"):
        text = f"Let me look.\n\n{text}\nAnd so on: 1 < 2 [x] <"
    events, parser = everywhere(form, [WEATHER, CLOCK], text)
    calls, texts = calls_of(events)
    assert calls == CALLS
    assert texts in ([], ["Let me look.", "And so on: 1 < 2 [x] <"])
    assert (parser.count, parser.ended, parser.faults) == (3, 3, [])


def texts(form):
    """Return texts that the format can hold: not those that end a value in it."""
    ends = [end for end in (getattr(form, "quote", ""), getattr(form, "value_end", "").strip()) if end]
    return st.text(max_size=12).map(lambda text: text if not any(end in text for end in ends) else "")


def values(form, kind):
    """Return values of a type of JSON."""
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    leaves = {
        "string": texts(form),
        "integer": st.integers(-(1 << 60), 1 << 60),
        "number": numbers,
        "boolean": st.booleans(),
        "null": st.none(),
    }
    if kind in leaves:
        return leaves[kind]
    keys = texts(form) if isinstance(form, AnyKeys) else NAMES
    deep = st.recursive(
        st.one_of(*leaves.values()),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )
    return st.lists(deep, max_size=3) if kind == "array" else st.dictionaries(keys, deep, max_size=3)


AnyKeys = JsonFormat | NamedFormat
NAMES = st.from_regex(r"[a-z_][a-zA-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
BESIDE = st.text(max_size=8).map(lambda text: "".join(c for c in text if c not in "<[{ \n" and not c.isspace()))


@st.composite
def replies(draw, forms=FORMATS):
    """Return a format, tools with random schemas, and calls of them."""
    form = forms[draw(st.sampled_from([*forms]))]
    tools, calls = [], []
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        keys = draw(st.lists(texts(form) if isinstance(form, AnyKeys) else NAMES, max_size=4, unique=True))
        types = {key: draw(st.sampled_from(TYPES)) for key in keys}
        schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}
        tools.append(Tool(name, "", schema))
        calls.append((name, {key: draw(values(form, kind)) for key, kind in types.items()}))
    return form, tools, draw(st.permutations(calls))


def check(reply, before, after, cuts_of):
    form, tools, calls = reply
    text = spelled(form, calls)
    if isinstance(form, JsonFormat):
        # Brackets that a model has counted wrong belong to its call.
        after = after.lstrip("]}")
    if not (isinstance(form, JsonFormat) and form.is_bare):
        text = f"{before}{text}{after}"
    else:
        before = after = ""
    whole, parser = found(form, tools, text)
    back, beside = calls_of(whole)
    assert json.dumps(back, sort_keys=True) == json.dumps([*map(list, calls)], sort_keys=True)
    assert "".join(beside) == before + after
    assert (parser.ended, parser.faults) == (len(calls), [])
    for cuts in cuts_of(text):
        assert found(form, tools, text, cuts)[0] == whole


@given(reply=replies(), before=BESIDE, after=BESIDE, seed=st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_calls_are_read_back(reply, before, after, seed):
    draw = random.Random(seed)
    check(reply, before, after, lambda text: [range(1, len(text)), sorted(draw.choices(range(len(text) + 1), k=5))])


def check_each_cut(reply, before, after):
    check(reply, before, after, lambda text: [range(1, len(text)), *([cut] for cut in range(1, len(text)))])


@given(reply=replies(), before=BESIDE, after=BESIDE)
@settings(max_examples=40, deadline=None, suppress_health_check=[*HealthCheck])
def test_some_random_calls_are_read_back_split_at_every_character(reply, before, after):
    check_each_cut(reply, before, after)


@pytest.mark.slow
@given(reply=replies(), before=BESIDE, after=BESIDE)
@settings(max_examples=500, deadline=None, suppress_health_check=[*HealthCheck])
def test_random_calls_are_read_back_split_at_every_character(reply, before, after):
    check_each_cut(reply, before, after)


@every_format
@given(parts=st.data())
@settings(max_examples=30, deadline=None)
def test_any_text_gives_the_same_events_wherever_it_is_split(name, parts):
    """Parts of calls in any order: what is no call stays text, and no letter of it is lost."""
    form = FORMATS[name]
    marks = [*form.markers.split(), spelled(form, CALLS), *'{}[]()",:=', '"name"', "get_weather", "city", " ", "\n"]
    text = "".join(parts.draw(st.lists(st.sampled_from(marks) | st.text(max_size=3), max_size=10)))
    whole, parser = found(form, [WEATHER, CLOCK], text)
    for cuts in (range(1, len(text)), range(0, len(text), 3)):
        events, other = found(form, [WEATHER, CLOCK], text, cuts)
        assert events == whole
        assert (other.count, other.ended, other.faults) == (parser.count, parser.ended, parser.faults)
    if not parser.count:
        assert "".join(event.text for event in whole) == text


@every_format
def test_a_call_that_is_cut_is_not_whole(name):
    """Every beginning of a call: its arguments so far are the beginning of a JSON object, or it is text."""
    form = FORMATS[name]
    text = spelled(form, CALLS[:1])
    whole, _ = found(form, [WEATHER], text)
    for end in range(len(text)):
        events, parser = found(form, [WEATHER], text[:end])
        if parser.count:
            written = "".join(event.text for event in events if isinstance(event, CallArguments))
            assert whole[1].text.startswith(written)
            assert parser.ended == (written == whole[1].text)
            # Nor is a beginning of its end text.
            assert not parser.ended or not any(isinstance(event, CallText) for event in events)
        else:
            assert events == [CallText(text[:end])] * bool(end)


MALFORMED = {
    "hermes": "<tool_call>get_weather(city='Bern')</tool_call>",
    "mistral": "[TOOL_CALLS]get_weather(city)",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>get_weather<|tool_call_end|>",
    "qwen": '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>',
    "glm": "<tool_call><arg_key>city</arg_key></tool_call>",
    "lfm2": "<|tool_call_start|>[the weather]<|tool_call_end|>",
    "gemma 4": "<|tool_call>call:get_weather(city)<tool_call|>",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_stays_text_and_is_accounted_for(name):
    text = f"So: {MALFORMED[name]} and on"
    events, parser = everywhere(FORMATS[name], [WEATHER, CLOCK], text)
    assert events == [CallText(text)]
    assert parser.faults and all("call 1: " in fault and "\n" not in fault for fault in parser.faults)


def test_a_call_behind_a_malformed_one_is_found():
    text = "<tool_call>\n<function=f\n</tool_call>\n" + spelled(FORMATS["qwen"], CALLS[1:2])
    events, parser = everywhere(FORMATS["qwen"], [WEATHER, CLOCK], text)
    assert calls_of(events)[0] == CALLS[1:2]
    assert len(parser.faults) == 1


def test_a_value_that_is_malformed_ends_the_call_before_it():
    text = "<|tool_call_start|>[f(a=1, b=open('x'))]<|tool_call_end|>"
    events, parser = everywhere(FORMATS["lfm2"], [], text)
    assert events == [CallBegin(0, "f"), CallArguments(0, '{"a": 1'), CallText(", b=open('x'))]<|tool_call_end|>")]
    assert (parser.count, parser.ended) == (1, 0)
    assert parser.faults == ["call 1: it has a value that is no literal of Python"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "twelve", "twelve"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "number"}, {"$ref": "#/$defs/word"}]}, "12", 12),
        ({"anyOf": [{"type": "number"}, {"$ref": "#/$defs/word"}]}, "[12]", "[12]"),
        ({"$ref": "#/$defs/word"}, "12", "12"),
        ({"$ref": "#/$defs/loop"}, "12", 12),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"allOf": [{}, {"type": "string"}]}, "1", "1"),
        ({"allOf": [{"$ref": "#/$defs/word"}]}, "1", "1"),
        ({"type": "string", "anyOf": [{"minLength": 1}, {}]}, "1", "1"),
        ({}, "[1]", [1]),
        ({"type": "object"}, "{'a': [None, True]}", {"a": [None, True]}),
        ({"type": "object"}, "{'a': open('x')}", "{'a': open('x')}"),
        (None, "NaN", "NaN"),
        (None, "[" * 9000, "[" * 9000),
    ],
)
def test_a_bare_text_has_the_type_of_its_schema(schema, text, value):
    definitions = {"word": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    found_value = typed_value({"properties": {"a": schema}, "$defs": definitions}, "a", text)
    assert (found_value, type(found_value)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "text", "value"),
    [
        ("true", "12", "12"),
        ("false", "12", 12),
        ("false", '{"a": [null]}', {"a": [None]}),
        ("false", "no JSON", "no JSON"),
    ],
)
@pytest.mark.parametrize("kind", ["string", "integer"])
def test_a_word_tells_the_type_of_a_value(word, text, value, kind):
    form = FORMATS["deepseek 3.2"]
    tools = [Tool("f", "", {"type": "object", "properties": {"a": {"type": kind}}})]
    written = spelled(form, [("f", {"a": "?"})]).replace('"true">?', f'"{word}">{text}')
    assert calls_of(found(form, tools, written)[0]) == ([("f", {"a": value})], [])
    parser = found(form, tools, written.replace(f'"{word}"', '"maybe"'))[1]
    assert (parser.faults, parser.ended) == (["call 1: it has no type of a value"], 0)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "clock", "parameters": {}}', [("clock", {})]),
        ('{"type": "function", "name": "clock", "parameters": {}}', [("clock", {})]),
        ('<|python_tag|>{"name": "clock", "parameters": {}}', [("clock", {})]),
        ('{"name": "other", "parameters": {}}', []),
        ('{"name": "clock"', []),
        ('{"answer": 42}', []),
        ('Call {"name": "clock", "parameters": {}}', []),
        ("[1, 2]", []),
    ],
)
def test_a_reply_that_is_a_bare_object_is_a_call_of_a_known_tool_only(text, calls):
    events, parser = everywhere(FORMATS["llama 3"], [CLOCK], text)
    assert calls_of(events)[0] == calls
    if not calls:
        assert (events, parser.faults) == ([CallText(text)], [])


def test_an_answer_that_is_a_bare_object_is_not_held_back():
    parser = FORMATS["llama 3"].parser([CLOCK])
    assert [*parser.feed('{"answer": "It is')] == [CallText('{"answer": "It is')]


def test_arguments_without_a_name_are_those_of_the_schema():
    events, _ = everywhere(
        FORMATS["lfm2"], [WEATHER], "<|tool_call_start|>[get_weather('Bern', days=2)]<|tool_call_end|>"
    )
    assert calls_of(events)[0] == [("get_weather", {"city": "Bern", "days": 2})]


def test_ids_are_those_that_the_templates_take():
    assert FORMATS["kimi"].call_id(1, "f") == "functions.f:1"
    nine = {FORMATS["mistral"].call_id(number, "f", salt) for number in range(50) for salt in ("", "x")}
    assert len(nine) == 100 and all(len(one) == 9 and one.isalnum() for one in nine)
    assert HERMES.call_id(3, "f", "ab") == "call_ab0003"


def test_line_ends_in_a_text_of_python_are_part_of_it():
    text = "<|tool_call_start|>[get_weather(city='Bern\nBasel', list=[\n1,\n2])]<|tool_call_end|>"
    assert calls_of(everywhere(FORMATS["lfm2"], [WEATHER], text)[0])[0] == [
        ("get_weather", {"city": "Bern\nBasel", "list": [1, 2]})
    ]


def test_a_section_of_cdata_is_a_text():
    text = spelled(FORMATS["minimax"], [("get_weather", {"list": "<![CDATA[[1] <b>]]>"})])
    assert calls_of(everywhere(FORMATS["minimax"], [WEATHER], text)[0])[0] == [("get_weather", {"list": "[1] <b>"})]
