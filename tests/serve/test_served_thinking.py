"""Models that think: their thoughts are no content, a budget ends them, and a grammar waits for their end."""

import json
from pathlib import Path

import pytest
from fake_model import EOS, ByteTokenizer, Continuation, FakeSequence, MarkedTools, MarkerTemplate, Replies
from local_server import serving

from tinychat.generate.model import Model
from tinychat.tools.formats.known import INKLING

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]}
SCHEMA |= {"additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'


class OpeningTemplate(MarkerTemplate):
    """Begins the think section for the model, unless it is switched off."""

    thinking_switch = "enable_thinking"

    def __init__(self):
        super().__init__(thinking_switch="enable_thinking")
        self.seen = []

    def opens_thinking_with(self, **variables):
        return variables.get("enable_thinking", True)

    def render_ids(self, messages, add_generation_prompt=True, **variables):
        self.seen.append(variables)
        # Without the closed section: the replayed reply counts from the last token of the prompt.
        return super().render_ids(messages, add_generation_prompt)


def thinker(*replies, template=None, speaker=None):
    sequence = FakeSequence(speaker or Replies(*replies), context_size=4096)
    model = Model(sequence, ByteTokenizer(), template or OpeningTemplate(), frozenset({EOS}), Path("fake"))
    model.tool_template = MarkedTools(model)
    return model


def ask(model, stream=False, **fields):
    """Return message and reason of an answer."""
    body = {"messages": HELLO, "max_tokens": 300, **fields}
    with serving(model) as server:
        if not stream:
            status, answer = server.post("/v1/chat/completions", body)
            assert status == 200, answer
            (choice,) = answer["choices"]
            return choice["message"], choice["finish_reason"]
        message = {"content": "", "reasoning_content": "", "arguments": ""}
        for chunk in server.chunks("/v1/chat/completions", body):
            (choice,) = chunk["choices"]
            for name in ("content", "reasoning_content"):
                message[name] += choice["delta"].get(name) or ""
            for call in choice["delta"].get("tool_calls", ()):
                message["arguments"] += call["function"]["arguments"]
        return message, choice["finish_reason"]


@pytest.mark.parametrize("template", [OpeningTemplate, MarkerTemplate])
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_no_content(template, stream):
    begin = "" if template is OpeningTemplate else "<think>\n"
    message, reason = ask(thinker(f"{begin}Hm.\n</think>\n\nYes.", template=template()), stream)
    assert (message["reasoning_content"], message["content"], reason) == ("Hm.\n", "Yes.", "stop")


def test_a_call_behind_thoughts():
    for stream in (False, True):
        message, reason = ask(thinker(f"Is {CALL} right?</think>\n\n{CALL}"), stream, tools=[TOOL])
        assert message["reasoning_content"] == f"Is {CALL} right?"
        arguments = message["arguments"] if stream else message["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments) == {"city": "Bonn"}
        assert reason == "tool_calls"


def test_a_beginning_is_no_thought():
    """Where thoughts are asked for all the same, it is a message before them."""
    messages = [*HELLO, {"role": "assistant", "content": "Yes"}]
    model = thinker(speaker=Continuation({"HelloYes": "No."}))
    assert ask(model, messages=messages)[0] == {"role": "assistant", "content": "No."}
    assert model.template.seen == [{"enable_thinking": False}]
    message, _ = ask(
        thinker(speaker=Continuation({"HelloYes": "Hm.</think>No."})), messages=messages, reasoning_effort="high"
    )
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "No.")


def test_an_effort_that_is_told_before_all_messages_stays_as_it_was():
    template = OpeningTemplate()
    template.thinking_switch = "reasoning_effort"
    template.opens_thinking_with = lambda **_: False
    model = thinker(speaker=Continuation({"HelloYes": "No."}), template=template)
    ask(model, messages=[*HELLO, {"role": "assistant", "content": "Yes"}])
    assert template.seen == [{}]


def test_effort_none_ends_thinking():
    # The template closes the section.
    model = thinker("Yes.")
    assert ask(model, reasoning_effort="none")[0] == {"role": "assistant", "content": "Yes."}
    assert model.template.seen == [{"enable_thinking": False, "reasoning_effort": "none"}]
    # A template without a switch: the budget closes the section that the model opens.
    message, _ = ask(thinker("<think>Hm, hm. </think> Yes.", template=MarkerTemplate()), reasoning_effort="minimal")
    assert not message.get("reasoning_content", "").strip()


def test_effort_switches_thinking_on_and_variables_win():
    model = thinker("Hm.</think>Yes.", "Yes.")
    assert ask(model, reasoning_effort="high")[0]["reasoning_content"] == "Hm."
    assert model.template.seen == [{"enable_thinking": True, "reasoning_effort": "high"}]
    model = thinker("Yes.")
    variables = {"enable_thinking": False, "city": "Bonn"}
    assert ask(model, reasoning_effort="high", chat_template_kwargs=variables)[0]["content"] == "Yes."
    assert model.template.seen == [{**variables, "reasoning_effort": "high"}]


@pytest.mark.parametrize("kwargs", [5, [1], {"a b": 1}])
def test_variables_are_an_object_of_names(kwargs):
    with serving(thinker()) as server:
        status, answer = server.post("/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": kwargs})
    assert (status, answer["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_waits_for_the_end_of_thinking(stream):
    pytest.importorskip("llguidance")
    message, _ = ask(thinker('Rome? No.\n</think>\n\n{"city": "Rome"}'), stream, response_format=FORMAT)
    assert message["reasoning_content"] == "Rome? No.\n"
    assert json.loads(message["content"]) == {"city": "Bonn"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_waits_for_the_end_of_thinking(stream):
    pytest.importorskip("llguidance")
    fields = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    message, reason = ask(thinker("I call it.</think>No, I do not."), stream, **fields)
    assert message["reasoning_content"] == "I call it."
    arguments = message["arguments"] if stream else message["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"city": "Bonn"}
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("effort", ["none", "high"])
def test_a_call_in_messages(stream, effort):
    """A required one has no thoughts before it if they are off; the model would write some."""
    pytest.importorskip("llguidance")
    thought = "<|content_thinking|>Hm.<|end_message|><|message_model|>"
    call = 'weather<|content_invoke_tool_json|>{"name":"weather","args":{"city":"Bonn"}}<|end_message|>'
    for required in (False, True):
        model = thinker(thought + call, template=MarkerTemplate())
        model.tool_template.form = INKLING
        choice = {"tool_choice": "required", "parallel_tool_calls": False} if required else {}
        message, reason = ask(model, stream, tools=[TOOL], reasoning_effort=effort, **choice)
        is_off = required and effort == "none"
        assert (message.get("reasoning_content") or "") == ("" if is_off else "Hm.")
        arguments = message["arguments"] if stream else message["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments) == {"city": "Bonn"}
        assert (message["content"] or "", reason) == ("", "tool_calls")


def test_a_model_cannot_leave_before_the_grammar():
    """An end in the thoughts would be no answer: the token is masked there."""
    pytest.importorskip("llguidance")
    message, reason = ask(thinker("Hm."), response_format=FORMAT, max_tokens=20)
    assert message["reasoning_content"].startswith("Hm.")
    assert reason == "length"


def test_a_grammar_with_thinking_switched_off():
    pytest.importorskip("llguidance")
    message, _ = ask(thinker("Rome"), response_format=FORMAT, reasoning_effort="none")
    assert json.loads(message["content"]) == {"city": "Bonn"}
    assert "reasoning_content" not in message


@pytest.mark.parametrize(("begun", "forced"), [("Hm", True), ("Hm.\n</think>\n\nYe", False)])
def test_a_budget_counts_from_what_a_completion_has_begun_with(begun, forced):
    """As a chat sends it whose context was full in the middle of a reply."""
    written = [*begun.encode()]
    body = {"prompt": [1, 2, *written], "begun": len(written), "opens_thinking": True, "think_budget": 0}
    with serving(thinker("s." + "x" * 40)) as server:
        status, answer = server.post("/completion", body | {"max_tokens": 12})
    assert status == 200, answer
    assert answer["content"].startswith("\n</think>\n\n") == forced
