"""Grammars of replies with calls that have their arguments as JSON."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import json_object, json_text
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers, quoted
from tinychat.tools.grammars.rules import Rules, add_reply

_PYTHON_TAG = "<|python_tag|>"


def hermes_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    one = _add_objects(rules, choice, "arguments")
    add_reply(rules, choice, "<tool_call>", f'"\\n" {one} {markers.lark(chr(10) + "</tool_call>")}', "\n")
    return rules.lark()


def mistral_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``[TOOL_CALLS]f[ARGS]{...}``; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    call_id = f"({markers.lark('[CALL_ID]')} /[a-zA-Z0-9]{{9}}/)?" if markers.is_token("[CALL_ID]") else ""
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        rules.add(f"tool_{number}", f"{quoted(tool.name)} {call_id} {markers.lark('[ARGS]')} arguments_{number}")
    add_reply(rules, choice, "[TOOL_CALLS]", any_tool(rules, choice), "")
    return rules.lark()


def mistral_list_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``[TOOL_CALLS] [{"name": "f", "arguments": {...}}]``; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    call_id = '", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\""'
    one = _add_objects(rules, choice, "arguments", f"({call_id})?")
    add_reply(rules, choice, "[TOOL_CALLS]", f'" "? "[" {listed(choice, one)} "]"', None)
    return rules.lark()


def llama_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of ``{"name": "f", "parameters": {...}}`` as a whole reply, or behind ``<|python_tag|>``."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    # One terminal with the space before it: free text may begin with space, too.
    rules.add("HEAD", '/[ \\n]{0,4}/ "{\\"name\\": "')
    one = _add_objects(rules, choice, "parameters", head="HEAD")
    has_tag = markers.is_token(_PYTHON_TAG)
    tag = f"{markers.lark(_PYTHON_TAG)}? " if has_tag else ""
    rules.add("calls", tag + listed(choice, one, '";"'))
    if choice.required:
        rules.add("start", "calls")
        return rules.lark()
    rules.add("PLAIN", 'TEXT & ~(/[ \\n]*/ "{\\"name\\"" ANY)')
    other = markers.others(_PYTHON_TAG)
    rules.add("start", f"calls | PLAIN? ({other} TEXT?)*" if other else "calls | PLAIN?")
    return rules.lark()


def kimi_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of a section with calls, each ``functions.f:0`` and JSON between markers; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    begin, middle, end = (f"<|tool_call_{name}|>" for name in ("begin", "argument_begin", "end"))
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        head = f"{markers.lark(begin)} {quoted(f'functions.{tool.name}:')} /[0-9]{{1,3}}/ {markers.lark(middle)}"
        rules.add(f"tool_{number}", f"{head} arguments_{number} {markers.lark(end)}")
    calls = listed(choice, any_tool(rules, choice), "")
    add_reply(
        rules, choice, "<|tool_calls_section_begin|>", f"{calls} {markers.lark('<|tool_calls_section_end|>')}", None
    )
    return rules.lark()


def any_tool(rules: Rules, choice: ToolChoice) -> str:
    """Return the rule of a call of any of the tools, whose own are named ``tool_NUMBER``."""
    return rules.add("tool", " | ".join(f"tool_{number}" for number in range(len(choice.callable_tools))))


def listed(choice: ToolChoice, one: str, between: str = '", "') -> str:
    """Return calls one behind the other, in Lark; a single one where they are not parallel."""
    return f"{one} ({between} {one})*" if choice.is_parallel else one


def _add_objects(rules: Rules, choice: ToolChoice, key: str, more: str = "", head: str = r'"{\"name\": "') -> str:
    """Add objects of name and arguments, one for each tool, that begin with `head`; return the rule of any of them."""
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        name = f'{json_text(tool.name)} ", \\"{key}\\": "'
        rules.add(f"tool_{number}", f'{head} {name} arguments_{number} {more} "}}"')
    return any_tool(rules, choice)
