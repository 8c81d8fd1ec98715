"""The format of calls by the chat template alone: what a template writes is read back."""

import json
import random
import threading

import pytest
from fake_model import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.call_texts import FORMATS, calls_of, everywhere, found, spelled
from tools.family_templates import ALTERNATING, CONTENT_ONLY, HARMONY, INKLING, MUSE, TEMPLATES
from tools.test_call_formats import CALLS, CLOCK, WEATHER, replies

from tinychat.text.guard import unguard
from tinychat.text.template import ChatTemplate
from tinychat.tools.definitions import Tool
from tinychat.tools.events import CallArguments, CallBegin, CallText, CallThought
from tinychat.tools.formats import known
from tinychat.tools.formats.derive import derived_format
from tinychat.tools.formats.known import HERMES, KIMI, LFM2
from tinychat.tools.formats.of_template import taught_format

WRITTEN = {name: ChatTemplate(source, ByteTokenizer(), name) for name, source in TEMPLATES.items()}
DERIVED = {name: derived_format(template) for name, template in WRITTEN.items()}
HARMONIES = ChatTemplate(HARMONY, ByteTokenizer(), "harmony")
RECIPIENTS = ChatTemplate(MUSE, ByteTokenizer(), "muse")
CONTENTS = ChatTemplate(INKLING, ByteTokenizer(), "inkling")
every_family = pytest.mark.parametrize("name", FORMATS)


def rendered(name, form, calls):
    """Return the reply with calls as the template of a family writes it."""
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": []}]
    for number, (tool, arguments) in enumerate(calls):
        function = {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}
        messages[1]["tool_calls"].append({"id": form.call_id(number, tool), "type": "function", "function": function})
    text = unguard(WRITTEN[name].render(messages, False))
    return text.partition("<|assistant|>\n")[2].removesuffix("<|end|>\n")


def in_one_reply(name, calls):
    """Return calls of which a reply of a family can have that many."""
    return calls[:1] if name == "llama 3" else calls


@every_family
def test_a_format_is_derived_from_the_template(name):
    form, calls = DERIVED[name], in_one_reply(name, CALLS)
    assert type(form) is type(FORMATS[name])
    assert form.opening == FORMATS[name].opening
    assert spelled(form, calls) == spelled(FORMATS[name], calls)
    assert taught_format(WRITTEN[name]).variable == "tools"
    assert taught_format(WRITTEN[name]).writes_calls


@every_family
def test_what_the_template_writes_is_read_back(name):
    form, calls = DERIVED[name], in_one_reply(name, CALLS)
    events, parser = found(form, [WEATHER, CLOCK], rendered(name, form, calls))
    assert calls_of(events) == (calls, [])
    assert (parser.ended, parser.faults) == (len(calls), [])


@given(reply=replies())
@settings(max_examples=60, deadline=None)
def test_random_calls_that_a_template_writes_are_read_back(reply):
    form, tools, calls = reply
    name = next(name for name, each in FORMATS.items() if each == form)
    calls = in_one_reply(name, calls)
    events, parser = found(DERIVED[name], tools, rendered(name, form, calls))
    assert json.dumps(calls_of(events)[0], sort_keys=True) == json.dumps([*map(list, calls)], sort_keys=True)
    assert parser.ended == len(calls)


def test_ids_that_a_template_asks_for():
    assert DERIVED["mistral list"].id_rule == "nine"
    assert DERIVED["kimi"].id_rule == "named"
    assert DERIVED["hermes"].id_rule == "any"


def test_a_template_that_knows_no_tools_has_the_format_of_hermes():
    template = ChatTemplate(ALTERNATING, ByteTokenizer(), "here")
    taught = taught_format(template)
    assert (taught.form, taught.variable, taught.writes_calls) == (HERMES, None, False)
    assert taught_format(template).form is HERMES


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (CONTENT_ONLY, LFM2),
        (CONTENT_ONLY.replace("<|tool_list_start|>", "<|tool_calls_section_begin|>"), KIMI),
        (CONTENT_ONLY.replace("<|tool_list_", "<tools>"), None),
    ],
)
def test_a_template_that_writes_no_calls_has_the_format_of_its_family(source, form):
    taught = taught_format(ChatTemplate(source, ByteTokenizer(), "here"))
    assert not taught.writes_calls
    assert (taught.form, taught.variable) == ((HERMES, None) if form is None else (form, "tools"))


@pytest.mark.parametrize(
    "program",
    [
        "{{- call.function.name }}",
        "{{- 'Call ' + call.function.name + ' with ' + call.function.arguments.first_key }}",
        "{{- 'first_key ' + call.function.name + ' first value' }}",
        "{{- '[' + call.function.name + '] ' + (call.function.arguments | string) }}",
        "{{- '{\"' + call.function.name + '\"' }}",
        "{{- call.function.name + '(first_key=' }}",
        "{{- '<c>' + call.id * 3 + call.function.name + '<a>' + call.function.arguments | tojson + '</c>' }}",
        "{{- ' ' * 150000 + '<c>' + call.function.name + '<a>' + call.function.arguments | tojson + '</c>' }}",
        "{{- '<c>' + call.function.name + '{first_key:' + 'x' * 150000 }}",
        "{{- '{\"a\": \"' * 20000 + call.function.name + '\"' }}",
        "{{- '<c>' + call.function.name + '{first_key:' }}",
        "{{- '<c>' + call.function.name + '{first_key:first value' }}",
        # Kimi K3's: a name of JSON for each type.
        "{{- '<|open|>call tool=\"' + call.function.name + '\"<|sep|>' }}"
        "{%- for k, v in call.function.arguments.items() %}"
        "{{- '<|open|>argument key=\"' + k + '\" type=\"' + ('string' if v is string else 'number') + '\"<|sep|>' }}"
        "{{- (v | string) + '<|close|>argument<|sep|>' }}{% endfor %}{{- '<|close|>call<|sep|>' }}",
    ],
)
def test_a_form_that_is_not_known_is_none(program):
    source = "{%- for message in messages %}{{- message.content }}{% for call in message.tool_calls or [] %}"
    template = ChatTemplate(f"{source}{program}{{% endfor %}}{{% endfor %}}{{{{ tools }}}}", ByteTokenizer(), "here")
    assert derived_format(template) is None
    assert taught_format(template).form is HERMES


NEXT = "<|end|><|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Where is it?{NEXT}"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bern"}<|call|>'
FOUND = [CallBegin(0, "get_weather"), CallArguments(0, '{"city": "Bern"}')]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (f"{THOUGHT}{CALL}", [CallThought("Where is it?"), *FOUND]),
        (f"{THOUGHT}<|channel|>final<|message|>In <Bern>.", [CallThought("Where is it?"), CallText("In <Bern>.")]),
        (" to=functions.get_weather<|channel|>commentary json" + CALL[CALL.index("<|message|>") :], FOUND),
        (
            "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant" + CALL,
            [CallText("Let me see."), *FOUND],
        ),
        ("plain text", [CallText("plain text")]),
        ("<|channel|>fin", [CallText("<|channel|>fin")]),
        ("<|channel|>" + "x" * 500, [CallText("<|channel|>" + "x" * 500)]),
    ],
)
def test_messages_of_harmony(text, events):
    form = taught_format(HARMONIES).form
    assert form.name == "harmony"
    assert everywhere(form, [Tool("get_weather")], text)[0] == events


MUSE_NEXT = "<|eom|><|start|>assistant"
MUSE_THOUGHT = f" to=self<|message|>Where is it?{MUSE_NEXT}"
MUSE_CALL = """ to=get_weather<|message|><atem:function_calls>
<atem:invoke name="get_weather">
<atem:parameter name="city">Bern</atem:parameter>
</atem:invoke>
</atem:function_calls>"""
CALL_AGAIN = [CallBegin(1, "get_weather"), CallArguments(1, '{"city": "Bern"}')]
INVOKE = MUSE_CALL[MUSE_CALL.index("<atem:invoke") : MUSE_CALL.index("</atem:function_calls>")]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (f"{MUSE_THOUGHT}{MUSE_CALL}", [CallThought("Where is it?"), *FOUND]),
        (f"{MUSE_CALL}<|eom|>", FOUND),
        (f"{MUSE_CALL}{MUSE_NEXT}{MUSE_CALL}<|eot|>", [*FOUND, *CALL_AGAIN]),
        (MUSE_CALL.replace("</atem:f", f"{INVOKE}</atem:f"), [*FOUND, *CALL_AGAIN]),
        (f" to=user<|message|>I look.{MUSE_NEXT}{MUSE_CALL}", [CallText("I look."), *FOUND]),
        (f"{MUSE_THOUGHT} to=user<|message|>In <Bern>.", [CallThought("Where is it?"), CallText("In <Bern>.")]),
        (MUSE_CALL.replace("get_weather", "self.look"), [CallBegin(0, "self.look"), *FOUND[1:]]),
        ("No header.", [CallText("No header.")]),
        (" to=get_weather", [CallText(" to=get_weather")]),
        (" to=get_weather<|message|>Hm.", [CallText(" to=get_weather<|message|>Hm.")]),
    ],
)
def test_messages_of_muse(text, events):
    form = taught_format(RECIPIENTS).form
    assert form.name == "recipients"
    assert everywhere(form, [Tool("get_weather")], text)[0] == events


SAY, THINK, CALL_JSON = "<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"
INKLING_NEXT = "<|end_message|><|message_model|>"
INKLING_THOUGHT = f"{THINK}Where is it?{INKLING_NEXT}"
INKLING_CALL = f'get_weather{CALL_JSON}{{"name":"get_weather","args":{{"city": "Bern"}}}}'


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (f"{INKLING_THOUGHT}{INKLING_CALL}<|end_message|>", [CallThought("Where is it?"), *FOUND]),
        (INKLING_CALL, FOUND),
        (f"{INKLING_CALL}<|content_model_end_sampling|>", FOUND),
        (f"{INKLING_CALL}{INKLING_NEXT}{INKLING_CALL}<|end_message|>", [*FOUND, *CALL_AGAIN]),
        (f"{SAY}I look.{INKLING_NEXT}{INKLING_CALL}", [CallText("I look."), *FOUND]),
        (f"{INKLING_CALL}{INKLING_NEXT}{SAY}I look.", [*FOUND, CallText("I look.")]),
        (f"{INKLING_THOUGHT}{SAY}In <Bern>.\n", [CallThought("Where is it?"), CallText("In <Bern>.\n")]),
        # Without an end of the message before, or the beginning of the next one.
        (f"{THINK}Where?{SAY}Here.", [CallThought("Where?"), CallText("Here.")]),
        (f"{SAY}Hm.<|end_message|>{INKLING_CALL}", [CallText("Hm."), *FOUND]),
        # Without a mark of the content.
        ("In Bern, get_weather.", [CallText("In Bern, get_weather.")]),
        (f"{INKLING_THOUGHT}Bern", [CallThought("Where is it?"), CallText("Bern")]),
        (f"{INKLING_THOUGHT}In <Bern>.<|end_message|>", [CallThought("Where is it?"), CallText("In <Bern>.")]),
        # Without the name of the tool before the mark, and in another order.
        (INKLING_CALL.removeprefix("get_weather"), FOUND),
        (f'f{CALL_JSON}{{"args": "{{\\"city\\": \\"Bern\\"}}", "name": "get_weather"}}', FOUND),
        (f"bash<|content_invoke_tool_text|>ls{INKLING_NEXT}<|content_tool_error|>No.", [CallText("lsNo.")]),
    ],
)
def test_messages_of_inkling(text, events):
    form = taught_format(CONTENTS).form
    assert form.name == "contents"
    found, parser = everywhere(form, [Tool("get_weather")], text)
    assert found == events
    assert not parser.faults


@pytest.mark.parametrize(
    ("content", "events", "faults"),
    [
        ('{"args":{}}', [CallText(f'f{CALL_JSON}{{"args":{{}}}}')], ["call 1: it names no tool"]),
        ("[1]", [CallText(f"f{CALL_JSON}[1]")], ["call 1: { is missing"]),
        (
            '{"name":"f","args":{"a": x}}',
            [CallBegin(0, "f"), CallArguments(0, '{"a": '), CallText("x}}")],
            ["call 1: its arguments are no JSON object"],
        ),
        (
            '{"name":"f","args":{"a": 1',
            [CallBegin(0, "f"), CallArguments(0, '{"a": 1')],
            ["call 1: its arguments are no JSON object"],
        ),
    ],
)
def test_malformed_calls_of_inkling(content, events, faults):
    text = f"f{CALL_JSON}{content}{INKLING_NEXT}{SAY}So."
    found, parser = everywhere(known.INKLING, [Tool("f")], text)
    last = events[-1].text if isinstance(events[-1], CallText) else ""
    assert found == [*events[: len(events) - bool(last)], CallText(f"{last}So.")]
    assert parser.faults == faults


MARKS = {
    "HARMONY": ("<|channel|>", "<|message|>", "<|end|>", "<|call|>", "to=functions.f", "{}"),
    "MUSE": ("<|message|>", "<|eom|>", "to=f", "to=self", "<atem:function_calls>", INVOKE, "</atem:function_calls>"),
    "INKLING": (SAY, THINK, CALL_JSON, "<|end_message|>", "<|message_model|>", "f", '{"name": "f", "args": {', "}"),
}


@pytest.mark.parametrize("name", MARKS)
def test_any_messages_end_and_are_the_same_wherever_they_are_split(name):
    def check():
        draw = random.Random(3)
        marks = [*MARKS[name], "<|start|>assistant", "x", " ", "\n"]
        for _ in range(400):
            text = "".join(draw.choices(marks, k=draw.randint(1, 12)))
            cuts = sorted(draw.choices(range(len(text)), k=3))
            events = [found(getattr(known, name), [], text, cut)[0] for cut in ((), cuts)]
            assert events[0] == events[1], (text, cuts)
        passed.append(True)

    passed = []
    # In a thread, so that an endless loop is a failure.
    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    thread.join(20)
    assert passed


@given(reply=replies({name: getattr(known, name) for name in MARKS}), cuts=st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=150, deadline=None)
def test_random_calls_in_messages_are_read_back(reply, cuts):
    form, tools, calls = reply
    text = spelled(form, calls)
    events, parser = found(form, tools, text, [cut for cut in cuts if cut < len(text)])
    assert json.dumps(calls_of(events), sort_keys=True) == json.dumps([calls, []], sort_keys=True)
    assert (parser.ended, parser.faults) == (len(calls), [])


@pytest.mark.parametrize("template", [HARMONIES, RECIPIENTS, CONTENTS], ids=["harmony", "muse", "inkling"])
def test_calls_in_messages_are_read_back(template):
    taught = taught_format(template)
    assert taught.variable == "tools"
    assert taught.writes_calls
    text = spelled(taught.form, CALLS)
    assert calls_of(found(taught.form, [WEATHER, CLOCK], text)[0]) == (CALLS, [])
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": []}]
    messages[1]["tool_calls"] = [{"id": "a", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}]
    text = unguard(template.render(messages, False, tools=None))
    written = text.rpartition("<|message_model|>" if template is CONTENTS else "<|start|>assistant")[2]
    assert found(taught.form, [WEATHER], written)[0] == FOUND
