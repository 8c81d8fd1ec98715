"""Calls whose arguments are bare texts between tags: ``<function=f><parameter=k>value</parameter></function>``.

Qwen3-Coder, Qwen3.5, Nemotron 3, GLM, MiniMax and others write them so. The schema of the tool says which values are
texts and which are JSON; in the format of DeepSeek V3.2 a word before each value does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.pythonic import python_value
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps, as_json
from tinychat.tools.formats.schema_types import property_types, type_of
from tinychat.tools.grammars.rules import Rules
from tinychat.tools.grammars.tagged import Tags, add_tagged_calls

# Stands in a mark for the word that tells the type of a value.
TYPE = "{type}"
_CDATA = ("<![CDATA[", "]]>")
# As Python prints them, which some templates do.
_WORDS = {"True": True, "False": False, "None": None}


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
        return _TaggedReader(self, tools)

    def add_rules(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rules of a reply with calls."""
        ends = self.key_end_before(is_text=True), self.key_end_before(is_text=False)
        tags = Tags(self.name_end, self.key_begin, *ends, self.value_end)
        add_tagged_calls(rules, choice, self.frame, tags)

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return name and arguments."""
        arguments = [self._spelled(key, value) for key, value in json.loads(call.arguments).items()]
        return f"{call.name}{self.name_end}{''.join(arguments)}"

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


class _TaggedReader(CallReader):
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
    types = property_types(schema, key)
    if types == {"string"}:
        return text
    try:
        value = _loaded(text.strip())
        as_json(value)
    except (ValueError, RecursionError, MalformedCall):
        return text
    kind = type_of(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
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
