"""Calls whose arguments are literals of a language, valid under a JSON schema: Python's, or in braces as Gemma's."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable

from tinychat.tools.grammars.arguments import json_number, json_value
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.rules import Rules
from tinychat.tools.grammars.schemas import Schema, choices_of, parts_of, properties_of, resolved, types_of

# Nested deeper, a value may be anything.
_DEEPEST = 24
_MOST_ITEMS = 200
Key = Callable[[str | None], str]


class Literals(ABC):
    """Adds the rules of arguments under the schema `root` to a grammar, for the tool of this number.

    A subclass says how the language spells strings, keys and constants.
    """

    comma: str
    """Between two items, in Lark."""
    brackets: tuple[str, str]
    """Around the arguments of a call."""

    def __init__(self, rules: Rules, root: Schema, number: int) -> None:
        self._rules, self._root, self._number = rules, root, number
        self._names: dict[str, str] = {}

    @abstractmethod
    def string(self, schema: Schema) -> str:
        """Return any string under a schema, in Lark."""

    @abstractmethod
    def constant(self, value: object) -> list[str]:
        """Return the spellings of a string, number, boolean or null, in Lark."""

    @abstractmethod
    def key(self, name: str | None) -> str:
        """Return the key of a member with all up to its value, in Lark; that of any member for None."""

    def value(self, schema: object, depth: int = 0) -> str:
        """Return the rule of a value under a schema."""
        found: Schema = resolved(schema, self._root) if depth < _DEEPEST else {}
        spelled = json.dumps(found, sort_keys=True, default=str)
        if spelled not in self._names:
            # Known before it is built: a schema may contain itself.
            self._names[spelled] = name = f"value_{self._number}_{len(self._names)}"
            self._rules.add(name, self._body(found, name, depth))
        return self._names[spelled]

    def argument(self, name: str | None) -> str:
        """Return the name of an argument with all up to its value, in Lark; that of any for None."""
        return self.key(name)

    def call(self, tool: str) -> str:
        """Return a call such as ``f(a="x", n=2)``, in Lark."""
        begin, end = self.brackets
        members = self._members(f"arguments_{self._number}", resolved(self._root, self._root), self.argument, 0)
        return f"{quoted(f'{tool}{begin}')} {members} {quoted(end)}"

    def _body(self, schema: Schema, name: str, depth: int) -> str:
        if (values := choices_of(schema)) is not None:
            return " | ".join(form for value in values for form in self._listed(value))
        if parts := parts_of(schema):
            return " | ".join(dict.fromkeys(self.value(part, depth + 1) for part in parts))
        return " | ".join(self._of_type(kind, schema, name, depth) for kind in types_of(schema))

    def _of_type(self, kind: str, schema: Schema, name: str, depth: int) -> str:
        match kind:
            case "string":
                return self.string(schema)
            case "boolean":
                return " | ".join([*self.constant(True), *self.constant(False)])
            case "null":
                return " | ".join(self.constant(None))
            case "array":
                return self._array(schema, depth)
            case "object":
                members = self._members(f"{name}_members", schema, self.key, depth)
                return f'"{{" {members} "}}"'
        return json_number(schema, kind)

    def _array(self, schema: Schema, depth: int) -> str:
        item = self.value(schema.get("items", {}), depth + 1)
        least, most = (schema.get(key) for key in ("minItems", "maxItems"))
        low = least if type(least) is int and 0 <= least <= _MOST_ITEMS else 0
        high = most if type(most) is int and low <= most <= _MOST_ITEMS else None
        if high == 0:
            return '"[" "]"'
        more = f"{item} ({self.comma} {item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        return f'"[" ({more}){"" if low else "?"} "]"'

    def _members(self, name: str, schema: Schema, key: Key, depth: int) -> str:
        listed = properties_of(schema)
        if listed:
            members = [(f"{key(name)} {self.value(value, depth + 1)}", needed) for name, value, needed in listed]
            return self._rules.members(name, members, self.comma)
        others = schema.get("additionalProperties", True)
        if others is False:
            return self._rules.add(name, '""')
        one = f"{key(None)} {self.value(others, depth + 1)}"
        return self._rules.add(name, f"({one} ({self.comma} {one})*)?")

    def _listed(self, value: object) -> list[str]:
        """Return the spellings of a value that a schema lists; of lists and objects, that in JSON."""
        if isinstance(value, list | dict):
            return [quoted(json.dumps(value, ensure_ascii=False))]
        return self.constant(value)


class PythonLiterals(Literals):
    """Literals of Python; JSON's constants and strings are taken, too."""

    comma = "/, ?/"
    brackets = "(", ")"

    def string(self, schema: Schema) -> str:
        """Return a string in quotes of either kind; in double ones if more is known of it."""
        known = {key: schema[key] for key in ("pattern", "format", "minLength", "maxLength") if key in schema}
        if known:
            return json_value({"type": "string", **known}, is_compact=True)
        escape = "\\\\([\"'\\\\abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
        self._rules.add("DOUBLE", f'/"([^"\\\\\\n]|{escape})*"/')
        self._rules.add("SINGLE", f"/'([^'\\\\\\n]|{escape})*'/")
        return "DOUBLE | SINGLE"

    def constant(self, value: object) -> list[str]:
        """Return the spellings of a constant in Python and in JSON."""
        forms = [repr(value), json.dumps(value, ensure_ascii=False)]
        return [quoted(form) for form in dict.fromkeys(forms)]

    def key(self, name: str | None) -> str:
        """Return the key of a member of a dictionary; that of any for None."""
        if name is None:
            return f"({self.string({})}) /: ?/"
        return f"({' | '.join(self.constant(name))}) /: ?/"

    def argument(self, name: str | None) -> str:
        """Return the name of an argument and what is between it and the value; that of any for None."""
        if name is None:
            return f'{self._rules.add("NAME", "/[A-Za-z_][A-Za-z_0-9]*/")} "="'
        return quoted(f"{name}=")


class BracedLiterals(Literals):
    """Literals in braces: keys as they are, strings between two `quote`."""

    comma = '","'
    brackets = "{", "}"

    def __init__(self, rules: Rules, root: Schema, number: int, quote: str) -> None:
        super().__init__(rules, root, number)
        self._quote = quote

    def string(self, schema: Schema) -> str:
        """Return a string between two quotes."""
        return f"{self._rules.markers.lark(self._quote)} {self._rules.until('string', self._quote)}"

    def constant(self, value: object) -> list[str]:
        """Return the spelling of a constant."""
        if isinstance(value, str):
            # The first quote alone: any other string begins with it, too, and terminals are not taken back.
            return [" ".join(map(self._rules.markers.lark, (self._quote, f"{value}{self._quote}")))]
        return [quoted(json.dumps(value))]

    def key(self, name: str | None) -> str:
        """Return the key of a member and its colon; that of any for None."""
        if name is None:
            return f'{self._rules.add("KEY", "/[A-Za-z_][^:{},]*/")} ":"'
        return quoted(f"{name}:")
