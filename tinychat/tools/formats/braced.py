"""Calls of Gemma: ``<|tool_call>call:f{city:<|"|>Bern<|"|>,days:2}<tool_call|>``; functiongemma has other quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps, as_json
from tinychat.tools.grammars.arguments import held_schema
from tinychat.tools.grammars.literals import BracedLiterals
from tinychat.tools.grammars.rules import Rules

_WORDS = {"None": None, "True": True, "False": False}
_DEEPEST = 64


@dataclass(frozen=True, kw_only=True)
class BracedFormat(CallFormat):
    """Each call is a name and arguments in braces; texts stand between two `quote`, keys as they are."""

    name: ClassVar = "braces"

    quote: str

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply."""
        return _BracedReader(self)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark."""
        return BracedLiterals(rules, held_schema(choice, tool), number, self.quote).call(tool.name)

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return name and arguments."""
        return f"{call.name}{self._spelled(json.loads(call.arguments))}"

    def _spelled(self, value: object) -> str:
        match value:
            case str():
                return f"{self.quote}{value}{self.quote}"
            case dict():
                return f"{{{','.join(f'{key}:{self._spelled(item)}' for key, item in value.items())}}}"
            case list():
                return f"[{','.join(map(self._spelled, value))}]"
        return as_json(value)


class _BracedReader(CallReader):
    _form: BracedFormat

    def _call(self) -> Steps[None]:
        quote = self._form.quote
        name = yield from self._name_before("{")
        yield from self._expect("{")
        yield self._begin(name)
        while not (yield from self._next("}")):
            key = yield from self._name_before(":")
            yield from self._expect(":")
            text = yield from self._element((quote,), False, ends="}")
            yield self._argument(key.removeprefix(quote).removesuffix(quote), _Value(text, quote).read())
            yield from self._next(",")
        yield self._end()
        yield from self._expect(self._form.call_end)


class _Value:
    """Reads the text of a whole value."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._at = text.strip(), quote, 0
        self._plain = re.compile(r"[^,:\[\]{}]*")

    def read(self) -> object:
        """Return the value; `MalformedCall` if it is none."""
        value = self._any(_DEEPEST)
        if self._at < len(self._text):
            raise MalformedCall("it has a value with an end too many")
        return value

    def _any(self, depth: int) -> object:
        if not depth:
            raise MalformedCall("it has a value that is nested too deep")
        if self._takes(self._quote):
            end = self._text.find(self._quote, self._at)
            if end < 0:
                raise MalformedCall("it has a text without its end")
            start, self._at = self._at, end + len(self._quote)
            return self._text[start:end]
        if self._takes("["):
            return self._items(depth)
        return self._members(depth) if self._takes("{") else self._word()

    def _items(self, depth: int) -> list[object]:
        items: list[object] = []
        while not self._takes("]"):
            items.append(self._any(depth - 1))
            self._separate("]")
        return items

    def _members(self, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        while not self._takes("}"):
            is_quoted = self._text.startswith(self._quote, self._at)
            key = str(self._any(depth - 1)) if is_quoted else self._taken()
            if not self._takes(":"):
                raise MalformedCall("it has a key without a value")
            members[key] = self._any(depth - 1)
            self._separate("}")
        return members

    def _separate(self, end: str) -> None:
        if not self._takes(",") and not self._text.startswith(end, self._at):
            raise MalformedCall(f"{end} is missing")

    def _word(self) -> object:
        word = self._taken().strip()
        try:
            return _WORDS[word] if word in _WORDS else json.loads(word)
        except (ValueError, RecursionError):
            raise MalformedCall(f"{word[:60]!r} is no value") from None

    def _taken(self) -> str:
        found = self._plain.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _takes(self, text: str) -> bool:
        is_next = self._text.startswith(text, self._at)
        self._at += len(text) * is_next
        return is_next
