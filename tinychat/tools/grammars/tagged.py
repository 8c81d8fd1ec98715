"""Grammars of replies with calls whose arguments stand between tags, texts as they are: Qwen3-Coder's, GLM's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import held_schema, json_value
from tinychat.tools.grammars.json_calls import any_tool
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers, quoted
from tinychat.tools.grammars.rules import Rules, add_reply
from tinychat.tools.grammars.schemas import Schema, choices_of, parts_of, properties_of, resolved, types_of

_CONSTANTS: Mapping[str, str] = {"boolean": '"true" | "false" | "True" | "False"', "null": '"null" | "None"'}
_COMPACT = ("integer", "number")


def qwen_coder_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of Qwen3-Coder's calls; None: any text.

    They are ``<tool_call>``, ``<function=f>``, ``<parameter=a>``, a value, and the ends of all three, on lines of their own.
    """
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    before, after = markers.lark("<parameter="), '">\\n"'
    close = f'{markers.lark("</parameter>")} "\\n"'
    text = rules.until("text", "</parameter>", before="\n")
    for number, tool in enumerate(choice.callable_tools):
        values = _TaggedValues(rules, held_schema(choice, tool), f'{text} "\\n"', f'"\\n" {close}')
        members = values.members(f"arguments_{number}", before, after)
        head, end = markers.lark(f"\n<function={tool.name}>\n"), markers.lark("</function>\n</tool_call>")
        rules.add(f"tool_{number}", f"{head} {members} {end}")
    add_reply(rules, choice, "<tool_call>", any_tool(rules, choice), "\n")
    return rules.lark()


def glm_grammar(choice: ToolChoice, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of GLM's calls, with or without line ends between the tags; None: any text.

    They are ``<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>``.
    """
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    line = '"\\n"?'
    before, after = markers.lark("<arg_key>"), f"{markers.lark('</arg_key>')} {line} {markers.lark('<arg_value>')}"
    text, close = rules.until("text", "</arg_value>"), markers.lark("</arg_value>")
    for number, tool in enumerate(choice.callable_tools):
        values = _TaggedValues(rules, held_schema(choice, tool), f"{text} {line}", f"{close} {line}")
        members = values.members(f"arguments_{number}", before, after)
        rules.add(f"tool_{number}", f"{quoted(tool.name)} {line} {members} {markers.lark('</tool_call>')}")
    add_reply(rules, choice, "<tool_call>", any_tool(rules, choice), "\n")
    return rules.lark()


class _TaggedValues:
    """The values of arguments: `text` is any text with the tag that ends it, `close` that tag alone."""

    def __init__(self, rules: Rules, root: Schema, text: str, close: str) -> None:
        self._rules, self._root, self._text, self._close = rules, root, text, close

    def members(self, name: str, before: str, after: str) -> str:
        """Add the rule of the arguments: each value comes behind its name, which stands between `before` and `after`."""
        listed = properties_of(self._root)
        members = [
            (f"{before} {quoted(each)} {after} {self._value(schema)}", needed) for each, schema, needed in listed
        ]
        if listed or self._root.get("additionalProperties", True) is False:
            return self._rules.members(name, members)
        any_name = self._rules.add("NAME", "/[A-Za-z_][A-Za-z_0-9.-]*/")
        return self._rules.add(name, f"({before} {any_name} {after} {self._text})*")

    def _value(self, schema: object) -> str:
        found = resolved(schema, self._root)
        if (values := choices_of(found)) is not None:
            forms = dict.fromkeys(form for value in values for form in _spelled(value))
            return f"({' | '.join(map(quoted, forms))}) {self._close}"
        types = self._types(found)
        if "string" in types:
            return self._text
        if all(kind in (*_CONSTANTS, *_COMPACT) for kind in types) and not parts_of(found):
            forms = [_CONSTANTS.get(kind) or json_value(_number(found, kind), is_compact=True) for kind in types]
            return f"({' | '.join(forms)}) {self._close}"
        definitions = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return f"({json_value(definitions | dict(found))}) {self._close}"

    def _types(self, schema: Schema) -> list[str]:
        """Return the types of a schema and of its parts."""
        if parts := parts_of(schema):
            return [kind for part in parts for kind in self._types(resolved(part, self._root))]
        return types_of(schema)


def _number(schema: Schema, kind: str) -> Schema:
    bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    return {"type": kind} | {key: schema[key] for key in bounds if key in schema}


def _spelled(value: object) -> list[str]:
    """Return the spellings of a value that a schema lists."""
    if isinstance(value, str):
        return [value]
    plain = json.dumps(value, ensure_ascii=False)
    return [plain, str(value)] if value is None or isinstance(value, bool) else [plain]
