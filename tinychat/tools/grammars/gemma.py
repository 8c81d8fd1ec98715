"""Grammars of replies with calls in the formats of Gemma 4 and functiongemma."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import held_schema
from tinychat.tools.grammars.json_calls import any_tool
from tinychat.tools.grammars.literals import GemmaLiterals
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers, quoted
from tinychat.tools.grammars.rules import Rules, add_reply


def gemma_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>``, Gemma 4's; None: any text."""
    return _grammar(choice, markers, "<|tool_call>", "<tool_call|>", '<|"|>')


def functiongemma_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``<start_function_call>call:f{a:<escape>x<escape>}<end_function_call>``; None: any text."""
    return _grammar(choice, markers, "<start_function_call>", "<end_function_call>", "<escape>")


def _grammar(choice: ToolChoice, markers: Markers, begin: str, end: str, mark: str) -> str | None:
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    for number, tool in enumerate(choice.callable_tools):
        schema = held_schema(choice, tool)
        members = GemmaLiterals(rules, schema, f"value_{number}", mark).arguments(f"arguments_{number}", schema, '","')
        rules.add(f"tool_{number}", f'{quoted(f"call:{tool.name}{{")} {members} "}}"')
    add_reply(rules, choice, begin, f"{any_tool(rules, choice)} {markers.lark(end)}", "")
    return rules.lark()
