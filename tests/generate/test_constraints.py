"""Constraints of a model: made once, and of calls of tools in its own format."""

import pytest
from fake_model import EOS, USER, VOCAB_SIZE, ByteTokenizer, fake_model

from tinychat.errors import SettingError
from tinychat.generate import grammar as grammars
from tinychat.generate.constraints import Constraints
from tinychat.generate.grammar import Grammar
from tinychat.generate.request import Request
from tinychat.tools.definitions import Tool, ToolChoice
from tinychat.tools.formats.json_calls import JsonFormat
from tinychat.tools.formats.known import HERMES

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BROKEN = {"type": "object", "properties": {"n": {"type": "nothing"}}}
TOOL = Tool("f", "", SCHEMA)
CALL = '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>'.format
# Its mark is a control token of the fake vocabulary.
MARKED = JsonFormat(call_begin="<user>", call_end=";")


def constraints():
    return Constraints(ByteTokenizer(), VOCAB_SIZE, [EOS])


def held(**fields):
    return ToolChoice((TOOL,), constrains=True, **fields)


def taken(constraint, ids):
    """Return how many of the ids the constraint takes."""
    state = constraint.start()
    for index, token_id in enumerate(ids):
        if state.finished or not state.allowed()[token_id]:
            return index
        state.accept(token_id)
    return len(ids)


def accepts(constraint, text):
    return taken(constraint, [*text.encode(), EOS][: None if constraint.leaves_text else -1]) >= len(text.encode())


def test_the_same_grammar_is_compiled_once(monkeypatch):
    asked = []
    limited = grammars._limited
    monkeypatch.setattr(grammars, "_limited", lambda action, *rest: asked.append(action) or limited(action, *rest))
    made, choice = constraints(), ToolChoice((Tool("compiled_once", "", SCHEMA),), constrains=True)
    first = made.of_calls(HERMES, choice)
    assert made.of_calls(HERMES, choice) is first
    assert asked == ["compile"]
    assert constraints().of_calls(HERMES, choice) is not first
    assert asked == ["compile"], "another model compiles it for its own vocabulary only"


def test_the_grammars_used_last_are_there():
    made = constraints()
    words = [Grammar.from_text(f'start: "{number}"') for number in range(9)]
    first = made.of(words[0])
    for word in words[1:8]:
        made.of(word)
        assert made.of(words[0]) is first
    made.of(words[8])
    assert made.of(words[0]) is first
    assert made.of(words[0], after_thinking=True) is not first


def test_nothing_is_held_where_nothing_asks_for_it():
    assert constraints().of_calls(HERMES, ToolChoice((TOOL,))) is None


def test_a_schema_that_is_refused_leaves_the_arguments_of_its_tool_free():
    choice = ToolChoice((TOOL, Tool("g", "", BROKEN)), constrains=True)
    constraint = constraints().of_calls(HERMES, choice)
    assert accepts(constraint, CALL('{"n": 1}'))
    assert not accepts(constraint, CALL('{"n": "x"}'))
    assert accepts(constraint, CALL('{"n": "x"}').replace('"f"', '"g"'))
    with pytest.raises(SettingError, match="tools cannot be used: Invalid type: nothing"):
        constraints().of_calls(HERMES, ToolChoice((Tool("g", "", BROKEN, strict=True),)))


def test_a_marker_that_is_a_control_token_may_come_where_the_grammar_wants_it():
    body, other = [*b'{"name": "f", "arguments": {"n": 1}};'], ByteTokenizer.added_tokens["<system>"]
    auto = constraints().of_calls(MARKED, held())
    call = [*b"So: ", USER, *body]
    assert taken(auto, [*call, *call]) == 2 * len(call)
    assert taken(auto, [other, *b"text", other]) == 6, "others are as free as without the grammar"
    assert taken(auto, [*b"So: ", USER, *b"So"]) == 5
    required = constraints().of_calls(MARKED, held(required=True))
    assert taken(required, [USER, *body]) == 1 + len(body)
    assert taken(required, [other]) == taken(required, [*b"So"]) == 0


def test_a_reply_that_may_call_is_watched_as_prose():
    model = fake_model(lambda ids: ord("x") if len(ids) % 2 else ord("y"), context_size=4096, has_template=True)
    loops = [
        model.reply(model.text_prompt("?"), request_for(model, choice)).to_end().finish_reason
        for choice in (None, held())
    ]
    assert loops == ["loop", "loop"]


def request_for(model, choice):
    constraint = None if choice is None else model.call_constraint(choice)
    return Request(temperature=0.0, max_tokens=2000, loop_stop=True, constraint=constraint)


def test_thoughts_of_a_reply_that_may_call_have_a_budget():
    model = fake_model(lambda ids: ord("<think>"[len(ids) - 4]) if 4 <= len(ids) < 11 else ord("a"), has_template=True)
    request = Request(temperature=0.0, max_tokens=60, think_budget=5, constraint=model.call_constraint(held()))
    assert "</think>" in model.reply(model.text_prompt("?"), request).to_end().text
