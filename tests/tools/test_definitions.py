"""Definitions of tools, and which of them a reply may or must call."""

import json

import pytest
from fake_model import EOS, VOCAB_SIZE, ByteTokenizer

from tinychat.errors import FieldError
from tinychat.generate.grammar import Constraint, Grammar
from tinychat.generate.grammar_tokens import GrammarTokens
from tinychat.tools.definitions import Tool, ToolChoice, as_tools, tool_choice
from tinychat.tools.formats.known import HERMES

SCHEMA = {"type": "object", "properties": {"n": {"$ref": "#/$defs/count"}}, "required": ["n"]} | {
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer"}},
}


def function(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def test_a_definition_comes_back_as_templates_want_it():
    given = function(description="Counts.", parameters=SCHEMA, strict=True)
    (tool,) = as_tools([given])
    assert tool == Tool("f", "Counts.", SCHEMA, strict=True)
    assert tool.as_dict() == function(description="Counts.", parameters=SCHEMA)


def test_what_is_left_out_has_defaults():
    (tool,) = as_tools([function(description=None, parameters=None, strict=None)])
    assert tool == Tool("f")
    assert tool.as_dict()["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ("f", "tools"),
        ({}, "tools"),
        ([function()] * 2, "tools"),
        ([function(str(n)) for n in range(513)], "tools"),
        ([function(), 5], "tools[1]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([{"type": "function"}], "tools[0].function"),
        ([function("")], "tools[0].function.name"),
        ([function("n" * 257)], "tools[0].function.name"),
        ([function(5)], "tools[0].function.name"),
        ([function(description=5)], "tools[0].function.description"),
        ([function(parameters=[1])], "tools[0].function.parameters"),
        ([function(strict="yes")], "tools[0].function.strict"),
    ],
)
def test_an_error_names_the_definition(tools, field):
    with pytest.raises(FieldError) as error:
        as_tools(tools)
    assert error.value.field == field


def test_choices():
    tools, found = [function("f"), function("g")], (Tool("f"), Tool("g"))
    named = {"type": "function", "function": {"name": "g"}}
    assert tool_choice(None, None, None) == ToolChoice()
    assert tool_choice(tools, None, None) == tool_choice(tools, "auto", True) == ToolChoice(found)
    assert tool_choice(tools, "none", None) == ToolChoice()
    assert tool_choice(tools, "required", False) == ToolChoice(found, required=True, is_parallel=False)
    only = tool_choice(tools, named, True)
    assert only == ToolChoice(found, required=True, only="g", is_parallel=False)
    assert only.callable_tools == (Tool("g"),)


@pytest.mark.parametrize(
    ("tools", "choice", "parallel", "field"),
    [
        (None, "required", None, "tool_choice"),
        ([], "required", None, "tool_choice"),
        ([function()], "f", None, "tool_choice"),
        ([function()], {"type": "function", "function": {"name": "g"}}, None, "tool_choice"),
        ([function()], 5, None, "tool_choice"),
        ([function()], "auto", "no", "parallel_tool_calls"),
        ([function()], "auto", 0, "parallel_tool_calls"),
    ],
)
def test_choices_that_make_no_sense(tools, choice, parallel, field):
    with pytest.raises(FieldError) as error:
        tool_choice(tools, choice, parallel)
    assert error.value.field == field


def accepted(choice, text):
    """Return how much of a text the grammar of a choice accepts, and whether the reply may end there."""
    pytest.importorskip("llguidance")
    grammar = Grammar.from_text(HERMES.grammar(choice), "tools")
    state = Constraint(grammar, GrammarTokens(ByteTokenizer(), VOCAB_SIZE, [EOS])).start()
    for index, byte in enumerate(text.encode()):
        if state.finished or not state.allowed()[byte]:
            return text.encode()[:index].decode(errors="ignore"), False
        state.accept(byte)
    return text, state.finished or bool(state.allowed()[EOS])


def call(name, **arguments):
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {json.dumps(arguments)}}}\n</tool_call>'


F, G = Tool("f", "", SCHEMA), Tool('g "ü"')


def test_a_required_call_is_all_of_the_reply():
    choice = ToolChoice((F, G), required=True)
    two = f"{call('f', n=5)}\n{call(G.name, anything=[1])}"
    assert accepted(choice, two) == (two, True)
    assert accepted(choice, "Well: ") == ("", False)
    assert accepted(choice, call("f", n="x"))[0].endswith('"n": ')
    assert accepted(choice, call("h"))[0].endswith('{"name": "')
    assert accepted(choice, call("f", n=5)[:-1]) == (call("f", n=5)[:-1], False)


def test_a_strict_tool_leaves_text_free_and_binds_calls():
    choice = ToolChoice((Tool("f", "", SCHEMA, strict=True), G))
    for text in ("", "No <tool> is needed.\n", f"First:\n{call('f', n=5)}\n{call(G.name, a=1)} done"):
        assert accepted(choice, text) == (text, True)
    assert accepted(choice, f"So: {call('f', n='x')}")[0].endswith('"n": ')
    assert accepted(choice, "So: <tool_call>no")[0] == "So: <tool_call>"


def test_no_grammar_where_nothing_is_strict_or_required():
    assert HERMES.grammar(ToolChoice((F, G))) is None
    assert HERMES.grammar(ToolChoice()) is None
