"""The Jinja environment for chat templates, which are programs by strangers.

Jinja's immutable sandbox keeps a template away from Python's internals. Three more bounds keep it from
hanging the program or filling the memory, without threads, signals or another process:

- only the filters and methods listed here exist, and those that can build large values look at the
  size first;
- every loop step, call, filter, operator and output is reported to a `Budget`;
- nothing is computed while compiling, where Jinja would fold ``10 ** 10 ** 10``.

Not covered: a bug in Jinja itself, and its lexer and parser, whose work the limit on the source bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from tinychat.errors import TextError
from tinychat.text import template_functions
from tinychat.text.budget import Budget

_FILTERS = (
    "abs capitalize count d default dictsort first float groupby int items last length list lower map max "
    "min reject rejectattr reverse select selectattr sort string title unique upper"
).split()
_STRING_METHODS = frozenset(
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind "
    "rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper".split()
)
_PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill"})
_PREFIX_METHODS = frozenset({"endswith", "join", "removeprefix", "removesuffix", "startswith"})
_METHODS: dict[type, frozenset[str]] = {
    str: _STRING_METHODS | _PADDING_METHODS,
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset(),
    float: frozenset(),
}
_POWER_BITS = 4096
_LONGEST_DATE_FORMAT = 100
LOOP = "tinychat_loop"
"""Filter put around what a loop walks over."""
NEW = "tinychat_new"
"""Filter put around list, tuple and dict literals."""
CONCAT = "tinychat_concat"
"""Filter that replaces the operator ``~``, given the list of its operands."""
_REFUSED = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates with transformers' settings and names, within `budget`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_report_output,
            extensions=[_GenerationTag, loopcontrols],
        )
        self.budget = Budget()
        filters = {name: self.filters[name] for name in _FILTERS}
        filters |= {"safe": str, NEW: _same, CONCAT: template_functions.concat}
        filters |= {"center": template_functions.center, "format": template_functions.format_filter}
        filters |= {name: getattr(template_functions, name) for name in ("indent", "join", "replace", "tojson", "trim")}
        self.filters = {name: self._metered(function) for name, function in filters.items()}
        self.filters[LOOP] = lambda items: self.budget.counted(items)
        self.globals = {
            "range": self.globals["range"],
            "dict": _new_dict,
            "namespace": _new_namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def compile_metered(self, source: str) -> jinja2.Template:
        """Compile a template whose loops, literals and outputs report to the budget."""
        return self.from_string(meter(self.parse(source)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow the methods listed in this file, and what Jinja's own objects offer."""
        for kind, allowed in _METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Fail at once: Jinja would wait until the value is used, and print nothing."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Give `str.format` and `str.format_map` bounds, wherever a template takes hold of them."""
        text = getattr(value, "__self__", None)
        if not isinstance(text, str) or value.__name__ not in ("format", "format_map"):
            return None
        function = template_functions.format_braces if value.__name__ == "format" else template_functions.format_map
        return functools.partial(function, self, text)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method, macro or global."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ == "join" and args:
            return template_functions.join_texts(__self, owner, list(args[0]))
        if isinstance(owner, str) and __obj.__name__ not in _PREFIX_METHODS:
            __self.budget.search(owner, *args, *kwargs.values())
        if isinstance(owner, str) and __obj.__name__ == "replace" and len(args) > 1:
            __self.budget.take(template_functions.replaced_size(owner, args[0], args[1]))
        if isinstance(owner, str) and __obj.__name__ in _PADDING_METHODS:
            template_functions.check_width(*(arg for arg in args if isinstance(arg, int)))
        result = super().call(__context, __obj, *args, **kwargs)
        __self.budget.measure(result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, once its result is known to be small enough."""
        if operator == "%" and isinstance(left, str):
            return template_functions.format_percent(self, left, right)
        if operator == "*":
            self.budget.take(_repeated_size(left, right) + _repeated_size(right, left))
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * right > _POWER_BITS:
                raise TextError("it computes with numbers that are too large")
        result = super().call_binop(context, operator, left, right)
        self.budget.measure(result)
        return result

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a filter report what it returns, and finish what it would return lazily."""

        @functools.wraps(function)
        def metered(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if isinstance(result, list | Iterator):
                result = self.budget.counted(result)
            self.budget.measure(result)
            return result

        return metered


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """Jinja's namespace, printed without its contents: they may hold one another over and over."""

    def __repr__(self) -> str:
        return "<namespace>"


@jinja2.pass_context
def _report_output(context: Context, value: Any) -> str:
    text = str(value)
    context.environment.budget.take(len(text))  # type: ignore[attr-defined]
    return text


def _repeated_size(sequence: Any, times: Any) -> int:
    if isinstance(sequence, str | list | tuple) and isinstance(times, int):
        return len(sequence) * max(times, 0)
    return 0


def _same(value: Any) -> Any:
    return value


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _new_namespace(*args: Any, **kwargs: Any) -> Namespace:
    return _TemplateNamespace(*args, **kwargs)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _LONGEST_DATE_FORMAT:
        raise TextError("it uses a date format that is too long")
    return datetime.now().strftime(format)


def meter(template: nodes.Template) -> nodes.Template:
    """Wrap loops, literals, ``~`` and fixed text in filters that report them.

    Raises
    ------
    jinja2.TemplateSyntaxError
        The template loads other templates, or has a recursive loop.
    """
    refused = next(template.find_all(_REFUSED), None)
    if refused is not None:
        raise TemplateSyntaxError("other templates cannot be loaded", refused.lineno)
    return cast(nodes.Template, _Metering().visit(template))


class _Metering(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        if node.recursive:
            raise TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), LOOP)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), CONCAT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, NEW) if node.ctx == "load" else node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        # Fixed text is written unseen; a constant goes through the environment's `finalize`.
        return nodes.Const(node.data, lineno=node.lineno)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
