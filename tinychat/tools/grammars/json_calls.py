"""Grammars of replies with calls that have their arguments as JSON."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import json_object, json_text
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.replies import Frame, add_reply, any_tool, repeated, wild
from tinychat.tools.grammars.rules import Rules

_PYTHON_TAG = "<|python_tag|>"


def add_objects(
    rules: Rules, choice: ToolChoice, frame: Frame, name_key: str, arguments_key: str, has_ids: bool
) -> None:
    """Add the rules of calls that are objects with name and arguments.

    Without a `name_key` the name is the key of the arguments. With `has_ids` an id of nine letters may come last.
    """
    more = '(", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\"")?' if has_ids else ""
    begin = quoted(f'{{"{name_key}": ' if name_key else "{")
    _add_tools(rules, choice, begin, arguments_key if name_key else None, more)
    add_reply(rules, choice, frame)


def add_bare_objects(rules: Rules, choice: ToolChoice, name_key: str, arguments_key: str, separator: str) -> None:
    """Add the rules of a reply that is a call if it begins with the key of its name.

    The tag of Llama 3 may come before it, where the vocabulary has that.
    """
    markers = rules.markers
    # One terminal with the space before it: free text may begin with space, too.
    key = f'{{"{name_key}"'
    rules.add("BEGIN", f"/[ \\n]{{0,4}}/ {quoted(f'{key}: ')}")
    _add_tools(rules, choice, "BEGIN", arguments_key)
    tag = f"{markers.lark(_PYTHON_TAG)}? " if markers.is_token(_PYTHON_TAG) else ""
    rules.add("calls", tag + repeated(choice, any_tool(rules, choice), separator.strip()))
    if choice.required:
        rules.add("start", "calls")
        return
    rules.add("PLAIN", f"TEXT & ~(/[ \\n]*/ {quoted(key)} ANY)")
    other = markers.others(_PYTHON_TAG)
    rules.add("start", f"calls | PLAIN? ({other} TEXT?)*" if other else "calls | PLAIN?")


def add_named_objects(rules: Rules, choice: ToolChoice, frame: Frame, name_end: str) -> None:
    """Add the rules of calls that are a name, `name_end`, and an object."""
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        rules.add(f"tool_{number}", f"{quoted(tool.name)} {wild(rules, name_end)} arguments_{number}")
    add_reply(rules, choice, frame)


def _add_tools(rules: Rules, choice: ToolChoice, begin: str, arguments_key: str | None, more: str = "") -> None:
    """Add objects, one for each tool: `begin`, the name, the key of the arguments if they have one, and `more`."""
    key = quoted(": " if arguments_key is None else f', "{arguments_key}": ')
    for number, tool in enumerate(choice.callable_tools):
        rules.add(f"arguments_{number}", json_object(choice, tool))
        rules.add(f"tool_{number}", f'{begin} {json_text(tool.name)} {key} arguments_{number} {more} "}}"')
