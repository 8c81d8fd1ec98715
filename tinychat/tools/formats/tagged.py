"""Calls whose arguments are bare texts between tags: ``<function=f><parameter=k>value</parameter></function>``.

Qwen3-Coder, Qwen3.5, Nemotron 3, GLM, MiniMax and others write them so. The schema of the tool says which values are
texts and which are JSON; in the format of DeepSeek V3.2 a word before each value does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.pythonic import python_value
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps, as_json
from tinychat.tools.grammars.arguments import held_schema, json_number, json_value
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.rules import Rules
from tinychat.tools.grammars.schemas import (
    Schema,
    allowed_types,
    choices_of,
    parts_of,
    properties_of,
    resolved,
    type_of,
)

# Stands in a mark for the word that tells the type of a value.
TYPE = "{type}"
_CDATA = ("<![CDATA[", "]]>")
# As Python prints them, which some templates do.
_WORDS = {"True": True, "False": False, "None": None}
_CONSTANTS: Mapping[str, str] = {"boolean": '"true" | "false" | "True" | "False"', "null": '"null" | "None"'}
_COMPACT = ("integer", "number")


@dataclass(frozen=True, kw_only=True)
class TaggedFormat(CallFormat):
    """Each call is a name, `name_end`, and arguments: `key_begin`, key, `key_end`, value, `value_end`.

    Where `key_end` has ``{type}``, a word replaces it: `text_type` before a text, `other_type` before JSON.
    """

    name: ClassVar = "tags"

    name_end: str
    key_begin: str
    key_end: str
    value_end: str
    text_type: str = ""
    other_type: str = ""

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply; the schemas of the tools type the values."""
        return TaggedReader(self, tools)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark."""
        members = _TaggedValues(rules, held_schema(choice, tool), self).members(number)
        return f"{quoted(tool.name)} {rules.markers.lark(self.name_end)} {members}"

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return name and arguments."""
        arguments = [self._spelled(key, value) for key, value in json.loads(call.arguments).items()]
        return f"{call.name}{self.name_end}{''.join(arguments)}"

    @property
    def is_typed(self) -> bool:
        """Whether the marks tell texts from other values."""
        return self.key_end_before(is_text=True) != self.key_end_before(is_text=False)

    def key_end_before(self, is_text: bool) -> str:
        """Return the text between a key and a value, which is a text or is not."""
        return self.key_end.replace(TYPE, self.text_type if is_text else self.other_type)

    def _spelled(self, key: str, value: object) -> str:
        is_text = isinstance(value, str)
        text = value if is_text else as_json(value)
        return f"{self.key_begin}{key}{self.key_end_before(is_text)}{text}{self.value_end}"

    @property
    def end(self) -> str:
        """A text that comes behind the end of a call; empty where the call has a single one."""
        return " ".join(self.call_end.split()[1:])


class TaggedReader(CallReader):
    """Reads calls whose arguments are texts between tags."""

    _form: TaggedFormat

    def __init__(self, form: TaggedFormat, tools: Sequence[Tool]) -> None:
        super().__init__(form)
        self._schemas = {tool.name: tool.parameters for tool in tools}

    def _call(self) -> Steps[None]:
        form = self._form
        first_end, *others = form.call_end.split()
        key_begin = form.key_begin.split()[0]
        name_end = form.name_end.split()
        name = yield from self._name_before(*(name_end[:1] or [key_begin, first_end]))
        yield from self._expect(form.name_end)
        yield self._begin(name)
        while not (yield from self._next(first_end)):
            yield from self._expect(form.key_begin)
            key = yield from self._name_before(form.key_end.split()[0])
            word = yield from self._key_end()
            text = yield from self._until(form.value_end.strip())
            yield from self._expect(form.value_end)
            yield self._argument(key, self._typed(name, key, text, word))
        yield self._end()
        yield from self._expect(" ".join(others))

    def _key_end(self) -> Steps[str]:
        """Take the text between a key and its value; return the word for its type, empty if the format has none."""
        form = self._form
        before, _, behind = form.key_end.partition(TYPE)
        yield from self._expect(before)
        if not form.text_type:
            return ""
        if not (word := (yield from self._next(form.text_type, form.other_type))):
            raise MalformedCall("it has no type of a value")
        yield from self._expect(behind)
        return word

    def _typed(self, tool: str, key: str, text: str, word: str) -> object:
        """Return a value without the line ends that the format writes around it; a section of CDATA is a text."""
        if word:
            return text if word == self._form.text_type else typed_value({}, key, text)
        if text.startswith(_CDATA[0]) and text.endswith(_CDATA[1]):
            return text.removeprefix(_CDATA[0]).removesuffix(_CDATA[1])
        if self._form.key_end.endswith("\n"):
            text = text.removeprefix("\n")
        if self._form.value_end.startswith("\n"):
            text = text.removesuffix("\n")
        return typed_value(self._schemas.get(tool, {}), key, text)


def typed_value(schema: Mapping[str, Any], key: str, text: str) -> object:
    """Return the value of an argument by the schema of its tool: a text where that wants one, else JSON if it is JSON.

    A value that the schema does not allow stays a text: whoever runs the tool can say what is wrong with it.
    """
    named = {name: value for name, value, _ in properties_of(schema)}
    types = {*allowed_types(named.get(key, schema.get("additionalProperties")), schema)}
    if types == {"string"}:
        return text
    try:
        value = _loaded(text.strip())
        as_json(value)
    except (ValueError, RecursionError, MalformedCall):
        return text
    kind = type_of(value)
    fits = kind in types or (kind == "integer" and "number" in types)
    return value if fits or "string" not in types else text


def _loaded(text: str) -> object:
    """Return the value of JSON, or of a literal of Python, which some templates write for lists and objects."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text, strict=False)
    except ValueError:
        if text[:1] in ("{", "["):
            return python_value(text)
        raise


class _TaggedValues:
    """The arguments of a tool under the schema `root`."""

    def __init__(self, rules: Rules, root: Schema, form: TaggedFormat) -> None:
        self._rules, self._root, self._form = rules, root, form
        end = form.value_end.strip()
        before, after = form.value_end.split(end)
        self._text = f"{rules.until('text', end, before)} {quoted(after)}"
        self._close = rules.markers.lark(form.value_end)

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
        if not self._form.is_typed:
            return f"{self._key(name, is_text=True)} {self._value(found)}"
        return f"({' | '.join(f'{self._key(name, is_text)} {value}' for is_text, value in self._kinds(found))})"

    def _kinds(self, found: Schema) -> Iterator[tuple[bool, str]]:
        """Yield the values of a schema, texts apart from others, each with whether it is of texts."""
        if (values := choices_of(found)) is not None:
            for is_text in (True, False):
                if some := [value for value in values if isinstance(value, str) is is_text]:
                    yield is_text, self._value({"enum": some})
            return
        types = allowed_types(found, self._root)
        if "string" not in types:
            yield False, self._value(found)
            return
        yield True, self._text
        if others := [kind for kind in types if kind != "string"]:
            yield False, self._json(found if parts_of(found) else {**found, "type": others})

    def _key(self, name: str, is_text: bool) -> str:
        lark, form = self._rules.markers.lark, self._form
        return f"{lark(form.key_begin)} {name} {lark(form.key_end_before(is_text))}"

    def _value(self, found: Schema) -> str:
        if (values := choices_of(found)) is not None:
            texts = dict.fromkeys(form for value in values for form in _spelled(value))
            return f"({' | '.join(map(quoted, texts))}) {self._close}"
        types = allowed_types(found, self._root)
        if "string" in types:
            return self._text
        if all(kind in (*_CONSTANTS, *_COMPACT) for kind in types) and not parts_of(found):
            forms = [_CONSTANTS.get(kind) or json_number(found, kind) for kind in types]
            return f"({' | '.join(forms)}) {self._close}"
        return self._json(found)

    def _json(self, schema: Schema) -> str:
        definitions = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return f"({json_value(definitions | dict(schema))}) {self._close}"


def _spelled(value: object) -> list[str]:
    """Return the spellings of a value that a schema lists."""
    if isinstance(value, str):
        return [value]
    plain = json.dumps(value, ensure_ascii=False)
    return [plain, str(value)] if value is None or isinstance(value, bool) else [plain]
