"""Formatting of text in chat templates: ``'{}'.format(x)``, ``'%s' % x``, ``'x'.ljust(9)``, with bounded widths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jinja2 import pass_environment
from jinja2.sandbox import SandboxedFormatter

from tinychat.errors import TextError

if TYPE_CHECKING:
    from tinychat.text.sandbox import ChatEnvironment

_WIDEST = 1000
_NUMBER = re.compile(r"\d+")
# A conversion of ``%`` as Python reads it, but for keys that hold brackets: they end in the type "(".
_CONVERSION = re.compile(r"%(\([^()]*\))?[-#0 +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)


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
