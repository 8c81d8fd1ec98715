"""Chat templates, which are not trusted: Jinja's immutable sandbox, with transformers' settings and names.

This module runs in a helper process (`tinychat.limited_process`), which bounds time and memory and can open no file; a
template that found a way out of the sandbox would find itself there.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_PRINTED_MARK = re.compile(r"(?<!\\)((?:\\\\)*)\\ufdd([01])")


class Marked(str):
    """A text with marks of `tinychat.text.guard`, which stay marks where a mapping or a list with it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _PRINTED_MARK.sub(lambda found: f"{found[1]}{chr(0xFDD0 + int(found[2]))}", super().__repr__())


ATTRIBUTES_OF = frozenset({str, Marked, int, float, bool, list, tuple, dict, Namespace, LoopContext})
"""The types whose attributes a template may read; those of everything else are denied."""

_LONGEST_TEXT = 200_000
# Escaped by JSON in ASCII, but for the marks of `tinychat.text.guard`.
_ESCAPED = re.compile(r"[^\x00-\x7f\ufdd0\ufdd1]+")
_LONGEST_TEXT_PER_INPUT = 4
_PROGRAMS = 8
_FILTERS = (
    "abs attr batch capitalize center count d default dictsort first float format groupby indent int items join last "
    "length list lower map max min reject rejectattr replace reverse round select selectattr slice sort string sum "
    "title trim truncate unique upper wordcount"
).split()


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters = {name: self.filters[name] for name in _FILTERS} | {"safe": str, "tojson": _tojson}
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow the attributes that Jinja allows, of the types listed in this file."""
        return type(obj) in ATTRIBUTES_OF and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Fail at once: Jinja would wait until the value is used, and print nothing."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: readable Unicode, nothing escaped for HTML. The marks of `guard` stay marks."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


_ENVIRONMENT = ChatEnvironment()
"""The environment that all templates share."""


@lru_cache(maxsize=_PROGRAMS)
def _program(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


def answer(request: Any) -> str | list[str | None]:
    """Compile the template ``source``, and render it with ``variables`` unless they are None.

    The program is cached for later requests. A text far longer than the variables is a ValueError. With ``many``, a
    list of variables, the answer is a list of texts, None where there is an error: it is told if asked alone.
    """
    program = _program(request["source"])
    if "many" in request:
        return [_rendered_or_none(program, variables) for variables in request["many"]]
    return "" if request["variables"] is None else _rendered(program, request["variables"])


def _rendered_or_none(program: jinja2.Template, variables: object) -> str | None:
    with suppress(Exception):
        return _rendered(program, variables)
    return None


def _rendered(program: jinja2.Template, variables: Any) -> str:
    text = program.render(_marked(variables))
    if len(text) > _LONGEST_TEXT + _LONGEST_TEXT_PER_INPUT * _text_length(variables):
        raise ValueError("it writes a text that is too large")
    return text


def _marked(value: Any) -> Any:
    """Copy plain data with `Marked` instead of texts that have marks."""
    if isinstance(value, str):
        return Marked(value) if "\ufdd0" in value else value
    if isinstance(value, dict):
        return {_marked(key): _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def _text_length(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    children = chain(value, value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_text_length, children))


def _load_the_rest() -> None:
    """Make Jinja and Python import their lazy modules: no file can be opened once requests come."""
    for source in ("{{ strftime_now('%x') ~ '\\n' }}", "{{ 1 / 0 }}", "{% if %}", "{{ ''.__class__ }}"):
        with suppress(Exception):
            _ENVIRONMENT.from_string(source).render()


_load_the_rest()
