"""Grammars of replies with calls that are written as in Python."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import held_schema
from tinychat.tools.grammars.json_calls import any_tool, listed
from tinychat.tools.grammars.literals import PythonLiterals
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers, quoted
from tinychat.tools.grammars.rules import Rules, add_reply


def lfm2_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``<|tool_call_start|>[f(a="x"), g()]<|tool_call_end|>``; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    calls = listed(choice, _add_calls(rules, choice), "/, ?/")
    add_reply(rules, choice, "<|tool_call_start|>", f'"[" {calls} {markers.lark("]<|tool_call_end|>")}', None)
    return rules.lark()


def olmo_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``<function_calls>`` with a call on each line; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    calls = listed(choice, _add_calls(rules, choice), '"\\n"')
    add_reply(rules, choice, "<function_calls>", f'"\\n"? {calls} "\\n"? {markers.lark("</function_calls>")}', None)
    return rules.lark()


def _add_calls(rules: Rules, choice: ToolChoice) -> str:
    for number, tool in enumerate(choice.callable_tools):
        schema = held_schema(choice, tool)
        literals = PythonLiterals(rules, schema, f"value_{number}")
        members = literals.arguments(f"arguments_{number}", schema, "/, ?/", literals.keyword)
        rules.add(f"tool_{number}", f'{quoted(f"{tool.name}(")} {members} ")"')
    return any_tool(rules, choice)
