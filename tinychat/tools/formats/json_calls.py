"""Calls that are JSON objects: ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>``.

Qwen2.5, Qwen3, SmolLM3, Granite 4 and many tunes write them so (the format of Hermes,
https://huggingface.co/NousResearch/Hermes-2-Pro-Llama-3-8B); older models of Mistral, Granite 3, Phi-4-mini and Command
R in a list; Llama 3 without any tag.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinychat.tools.definitions import Tool, ToolCall, ToolChoice
from tinychat.tools.events import CallArguments, CallBegin
from tinychat.tools.formats.call_format import CallFormat
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps, as_json
from tinychat.tools.grammars.arguments import json_object, json_text
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.replies import any_tool, repeated
from tinychat.tools.grammars.rules import Rules

_BARE_KEYS = {"type", "id"}
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True, kw_only=True)
class JsonFormat(CallFormat):
    """Each call is a JSON object with name and arguments."""

    name: ClassVar = "JSON"

    name_key: str = "name"  # if empty, the only key of the object is the name
    arguments_key: str = "arguments"
    is_bare: bool = False  # whether a reply that begins with such an object is a call, without a tag

    @property
    def opening(self) -> str:
        """The text by which calls in a reply are found."""
        return _PYTHON_TAG if self.is_bare else super().opening

    def parser(self, tools: Sequence[Tool]) -> CallReader:
        """Return a parser of one reply."""
        return _BareReader(self, tools) if self.is_bare else JsonReader(self)

    def tool_rule(self, rules: Rules, choice: ToolChoice, tool: Tool, number: int) -> str:
        """Return a call of a tool, in Lark."""
        begin, more = quoted(f'{{"{self.name_key}": ' if self.name_key else "{"), ""
        if self.is_bare:
            # One terminal with the space before it: free text may begin with space, too.
            begin = rules.add("BEGIN", f"/[ \\n]{{0,4}}/ {begin}")
        elif self.id_rule == "nine":
            # An id may come last.
            more = '(", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\"")?'
        key = quoted(f', "{self.arguments_key}": ' if self.name_key else ": ")
        arguments = rules.add(f"arguments_{number}", json_object(choice, tool))
        return f'{begin} {json_text(tool.name)} {key} {arguments} {more} "}}"'

    def add_reply(self, rules: Rules, choice: ToolChoice) -> None:
        """Add the rule of a reply with calls; a bare one is a call if it begins with the key of its name.

        The tag of Llama 3 may come before it, where the vocabulary has that.
        """
        if not self.is_bare:
            super().add_reply(rules, choice)
            return
        markers = rules.markers
        tag = f"{markers.lark(_PYTHON_TAG)}? " if markers.is_token(_PYTHON_TAG) else ""
        rules.add("calls", tag + repeated(choice, any_tool(rules, choice), self.separator.strip()))
        if choice.required:
            rules.add("start", "calls")
            return
        key = quoted(f'{{"{self.name_key}"')
        rules.add("PLAIN", f"TEXT & ~(/[ \\n]*/ {key} ANY)")
        other = markers.others(_PYTHON_TAG)
        rules.add("start", f"calls | PLAIN? ({other} TEXT?)*" if other else "calls | PLAIN?")

    def spell_body(self, call: ToolCall, number: int) -> str:
        """Return the object."""
        if not self.name_key:
            return f"{{{as_json(call.name)}: {call.arguments}}}"
        return f'{{"{self.name_key}": {as_json(call.name)}, "{self.arguments_key}": {call.arguments}}}'


class JsonReader(CallReader):
    """Reads calls that are objects, or lists of them."""

    def __init__(self, form: JsonFormat) -> None:
        super().__init__(form)
        self._name_keys = {"name", form.name_key}
        self._arguments_keys = {"arguments", "parameters", form.arguments_key}
        self._is_named_by_key = not form.name_key

    def _calls(self) -> Steps[None]:
        is_list = yield from self._next("[")
        yield from self._call()
        self._commit()
        while (yield from self._next(",", ";")) or (yield from self._sees("{")):
            yield from self._call()
            self._commit()
        # Some models count the brackets wrong.
        while (yield from self._next("}", "]" if is_list else "}")):
            pass
        for end in (self._form.call_end, self._form.section_end.strip().lstrip("]")):
            if end.strip():
                yield from self._next(end.strip())

    def _call(self) -> Steps[None]:
        """Read an object: its arguments come as they are written if the name comes before them."""
        name, arguments, count = "", None, self.count
        yield from self._expect("{")
        while not (yield from self._next("}")):
            key = yield from self._string()
            yield from self._expect(":")
            self._check_key(key)
            name = key if self._is_named_by_key else name
            if key in self._name_keys and not self._is_named_by_key:
                name = yield from self._string()
            elif not (self._is_named_by_key or key in self._arguments_keys):
                yield from self._value()
            elif name and count == self.count and (yield from self._sees("{")):
                yield self._begin(name)
                yield from self._object()
            else:
                arguments = yield from self._value()
            if not (yield from self._next(",")) and not (yield from self._sees("}")):
                if count == self.count:
                    yield from self._expect("}")
                break
        if count == self.count:
            yield from self._late_arguments(name, arguments)

    def _check_key(self, key: str) -> None:
        """Refuse a key that no call has; behind a mark any may come."""

    def _late_arguments(self, name: str, text: str | None) -> Steps[None]:
        """Begin a call whose arguments came before its name, are a text, or are not there."""
        if not name:
            raise MalformedCall("it names no tool")
        arguments = _loaded(text or "{}")
        if isinstance(arguments, str):
            arguments = _loaded(arguments)
        if arguments is not None and not isinstance(arguments, dict):
            raise MalformedCall("its arguments are no JSON object")
        spelled = as_json(arguments or {})
        yield self._begin(name)
        self.ended += 1
        yield CallArguments(self.count - 1, spelled)

    def _string(self) -> Steps[str]:
        found = _loaded((yield from self._value()))
        if not isinstance(found, str):
            raise MalformedCall("it has a key or a name that is no text")
        return found


class _BareReader(JsonReader):
    """Takes a reply that begins with an object for a call if that names a tool."""

    def __init__(self, form: JsonFormat, tools: Sequence[Tool]) -> None:
        super().__init__(form)
        self._known = {tool.name for tool in tools}

    def _read(self) -> Steps[None]:
        yield from self._space()
        is_object, self._at = self._text[self._at : self._at + 1] in ("{", "["), 0
        if is_object:
            yield from self._attempt()
        if not self.count:
            self.faults.clear()
        self._known.clear()
        yield from super()._read()

    def _check_key(self, key: str) -> None:
        # An answer in JSON: it is not held back to its end.
        if self._known and key not in _BARE_KEYS | self._name_keys | self._arguments_keys:
            raise MalformedCall(f"calls have no key {key[:60]!r}")

    def _begin(self, name: str) -> CallBegin:
        if self._known and name not in self._known:
            raise MalformedCall(f"there is no tool {name[:60]!r}")
        return super()._begin(name)


def _loaded(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise MalformedCall("it is no JSON") from None
