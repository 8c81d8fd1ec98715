"""Grammar of replies with calls whose arguments stand between tags, texts as they are: Qwen3-Coder's, GLM's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import held_schema, json_number, json_value
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.replies import Frame, add_reply
from tinychat.tools.grammars.rules import Rules
from tinychat.tools.grammars.schemas import Schema, choices_of, parts_of, properties_of, resolved, types_of

_CONSTANTS: Mapping[str, str] = {"boolean": '"true" | "false" | "True" | "False"', "null": '"null" | "None"'}
_DEEPEST = 6
_COMPACT = ("integer", "number")


class Tags(NamedTuple):
    """The marks around the arguments of a call; between key and value are those of a text, or of any other value."""

    name_end: str
    key_begin: str
    text_key_end: str
    other_key_end: str
    value_end: str

    @property
    def are_typed(self) -> bool:
        """Whether the marks tell texts from other values."""
        return self.text_key_end != self.other_key_end


def add_tagged_calls(rules: Rules, choice: ToolChoice, frame: Frame, tags: Tags) -> None:
    """Add the rules of calls whose arguments stand between tags."""
    for number, tool in enumerate(choice.callable_tools):
        values = _TaggedValues(rules, held_schema(choice, tool), tags)
        rules.add(f"tool_{number}", f"{quoted(tool.name)} {rules.markers.lark(tags.name_end)} {values.members(number)}")
    add_reply(rules, choice, frame)


class _TaggedValues:
    """The arguments of a tool under the schema `root`."""

    def __init__(self, rules: Rules, root: Schema, tags: Tags) -> None:
        self._rules, self._root, self._tags = rules, root, tags
        end = tags.value_end.strip()
        before, after = tags.value_end.split(end)
        self._text = f"{rules.until('text', end, before)} {quoted(after)}"
        self._close = rules.markers.lark(tags.value_end)

    def members(self, number: int) -> str:
        """Add the rule of the arguments of the tool with this number."""
        name, listed = f"arguments_{number}", properties_of(self._root)
        members = [(self._member(quoted(key), schema), needed) for key, schema, needed in listed]
        if listed or self._root.get("additionalProperties", True) is False:
            return self._rules.members(name, members)
        any_name = self._rules.add("NAME", "/[A-Za-z_][A-Za-z_0-9.-]*/")
        return self._rules.add(name, f"({self._member(any_name, {})})*")

    def _member(self, name: str, schema: object) -> str:
        """Return an argument in Lark."""
        found = resolved(schema, self._root)
        if not self._tags.are_typed:
            return f"{self._key(name, is_text=True)} {self._value(found)}"
        return f"({' | '.join(f'{self._key(name, is_text)} {value}' for is_text, value in self._kinds(found))})"

    def _kinds(self, found: Schema) -> Iterator[tuple[bool, str]]:
        """Yield the values of a schema, texts apart from others, each with whether it is of texts."""
        if (values := choices_of(found)) is not None:
            for is_text in (True, False):
                if some := [value for value in values if isinstance(value, str) is is_text]:
                    yield is_text, self._value({"enum": some})
            return
        types = self._types(found)
        if "string" not in types:
            yield False, self._value(found)
            return
        yield True, self._text
        if others := [kind for kind in types if kind != "string"]:
            yield False, self._json(found if parts_of(found) else {**found, "type": others})

    def _key(self, name: str, is_text: bool) -> str:
        lark, tags = self._rules.markers.lark, self._tags
        return f"{lark(tags.key_begin)} {name} {lark(tags.text_key_end if is_text else tags.other_key_end)}"

    def _value(self, found: Schema) -> str:
        if (values := choices_of(found)) is not None:
            texts = dict.fromkeys(form for value in values for form in _spelled(value))
            return f"({' | '.join(map(quoted, texts))}) {self._close}"
        types = self._types(found)
        if "string" in types:
            return self._text
        if all(kind in (*_CONSTANTS, *_COMPACT) for kind in types) and not parts_of(found):
            forms = [_CONSTANTS.get(kind) or json_number(found, kind) for kind in types]
            return f"({' | '.join(forms)}) {self._close}"
        return self._json(found)

    def _json(self, schema: Schema) -> str:
        definitions = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return f"({json_value(definitions | dict(schema))}) {self._close}"

    def _types(self, schema: Schema, depth: int = 0) -> list[str]:
        """Return the types of a schema and of its parts; all of them where it is nested too deep."""
        if depth == _DEEPEST or not (parts := parts_of(schema)):
            return types_of(schema)
        return [kind for part in parts for kind in self._types(resolved(part, self._root), depth + 1)]


def _spelled(value: object) -> list[str]:
    """Return the spellings of a value that a schema lists."""
    if isinstance(value, str):
        return [value]
    plain = json.dumps(value, ensure_ascii=False)
    return [plain, str(value)] if value is None or isinstance(value, bool) else [plain]
