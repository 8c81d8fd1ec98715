"""Filters and methods of chat templates whose results may be far larger than what they are given."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from jinja2 import pass_environment
from jinja2.filters import make_attrgetter
from jinja2.sandbox import SandboxedFormatter

from tinychat.errors import TextError

if TYPE_CHECKING:
    from tinychat.text.sandbox import ChatEnvironment

_WIDEST_INDENT = 100
_WIDEST = 1000
_NUMBER = re.compile(r"\d+")
# A conversion of ``%`` as Python reads it, but for keys that hold brackets: they end in the type "(".
_CONVERSION = re.compile(r"%(\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)


@pass_environment
def join(environment: ChatEnvironment, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Join items, or one attribute of each, with `d` between them."""
    attribute_of = make_attrgetter(environment, attribute) if attribute is not None else None
    items = list(value)
    return join_texts(environment, str(d), [attribute_of(item) for item in items] if attribute_of else items)


@pass_environment
def concat(environment: ChatEnvironment, values: list[Any]) -> str:
    """Join the operands of ``~``."""
    return join_texts(environment, "", values)


def join_texts(environment: ChatEnvironment, separator: str, items: list[Any]) -> str:
    """Join after a look at how long the result will be."""
    texts = [str(item) for item in items]
    environment.budget.take(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


@pass_environment
def trim(environment: ChatEnvironment, value: Any, chars: str | None = None) -> str:
    """Strip whitespace, or any of some letters, from both ends."""
    environment.budget.search(str(value), chars)
    return str(value).strip(chars)


@pass_environment
def replace(environment: ChatEnvironment, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    """Replace `old` by `new`, in the first `count` places or everywhere."""
    text, old, new = str(s), str(old), str(new)
    environment.budget.search(text, old)
    environment.budget.take(replaced_size(text, old, new))
    return text.replace(old, new, -1 if count is None else count)


def replaced_size(text: str, old: str, new: str) -> int:
    """Return the characters of a text after replacing everywhere, or more."""
    return len(text) + text.count(old) * len(new)


@pass_environment
def indent(environment: ChatEnvironment, s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent all lines but the first, and blank ones, by spaces or a given text."""
    space = width if isinstance(width, str) else " " * min(width, _WIDEST_INDENT + 1)
    if len(space) > _WIDEST_INDENT:
        raise TextError(f"it indents by more than {_WIDEST_INDENT} characters")
    lines = str(s).splitlines() or [""]
    if str(s).endswith("\n"):
        lines.append("")
    environment.budget.take(len(str(s)) + len(space) * len(lines))
    indented = [space + line if line or blank else line for line in lines]
    return "\n".join(indented if first else [lines[0], *indented[1:]])


@pass_environment
def tojson(
    environment: ChatEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: readable Unicode, nothing escaped for HTML."""
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > _WIDEST_INDENT:
        raise TextError(f"it indents by more than {_WIDEST_INDENT} characters")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    chunks: list[str] = []
    for chunk in encoder.iterencode(value):
        environment.budget.take(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)


class BoundedFormatter(SandboxedFormatter):
    """Jinja's formatter, which lets no template read a private attribute; widths and sizes are bounded."""

    def __init__(self, environment: ChatEnvironment) -> None:
        super().__init__(environment)
        self._environment = environment

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one value; the specification has its nested fields filled in already."""
        check_width(*map(_as_int, _NUMBER.findall(format_spec)))
        self._environment.budget.take(self._environment.budget.weigh(value))
        text: str = super().format_field(value, format_spec)
        return text


def format_braces(environment: ChatEnvironment, text: str, /, *args: Any, **kwargs: Any) -> str:
    """``text.format(...)``."""
    return _format_fields(environment, text, args, kwargs)


def format_map(environment: ChatEnvironment, text: str, mapping: Any) -> str:
    """``text.format_map(mapping)``."""
    return _format_fields(environment, text, (), mapping)


def format_percent(environment: ChatEnvironment, text: str, values: Any) -> str:
    """``text % values``.

    Raises
    ------
    TextError
        A field is too wide, or the result would be too large.
    """
    conversions = _CONVERSION.findall(text)
    for _key, width, precision, kind in conversions:
        if kind == "(":
            raise TextError("it formats text with a key that holds brackets")
        check_width(*(_as_int(number) for number in (width, precision) if number.isdigit()))
        if "*" in (width, precision):
            check_width(*(value for value in values if isinstance(value, int)) if isinstance(values, tuple) else ())
    environment.budget.take(len(text) + len(conversions) * environment.budget.weigh(values))
    formatted: str = text % values
    return formatted


@pass_environment
def format_filter(environment: ChatEnvironment, value: Any, *args: Any, **kwargs: Any) -> str:
    """``text|format(...)``, by the rules of ``%``."""
    return format_percent(environment, str(value), kwargs or args)


@pass_environment
def center(environment: ChatEnvironment, value: Any, width: int = 80) -> str:
    """Center in a line of so many characters."""
    check_width(width)
    return str(value).center(width)


def _format_fields(environment: ChatEnvironment, text: str, args: Any, kwargs: Any) -> str:
    environment.budget.take(len(text) + text.count("{") * environment.budget.weigh([args, kwargs]))
    return BoundedFormatter(environment).vformat(text, args, kwargs)


def check_width(*widths: int) -> None:
    """Refuse a field that no real template needs.

    Raises
    ------
    TextError
        One of the widths, in characters, is too large.
    """
    if any(abs(width) > _WIDEST for width in widths):
        raise TextError(f"it makes a field wider than {_WIDEST} characters")


def _as_int(digits: str) -> int:
    # Python refuses to read numbers of thousands of digits.
    return int(digits[-9:]) if len(digits.lstrip("0")) < 9 else 10**9
