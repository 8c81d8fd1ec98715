"""A walk over everything that a chat template can reach from the values that it can name."""

import types
from functools import partial
from itertools import chain, islice

import jinja2
import pytest
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference
from jinja2.utils import Namespace

from tinychat.text import sandbox

PLAIN = (str, int, float, bool, type(None), bytes, list, tuple, dict, range, complex, type(NotImplemented))
VIEWS = (
    type({}.keys()),
    type({}.values()),
    type({}.items()),
    type(iter("")),
    type(reversed([])),
    type(reversed({})),
    types.GeneratorType,
    enumerate,
    zip,
)
OPAQUE = (
    # Callable, and without one readable attribute: the walk below reads their attributes, too.
    types.BuiltinFunctionType,
    types.MethodType,
    types.FunctionType,
    types.GenericAlias,
    type,
    type(str.maketrans),
    Macro,
    BlockReference,
    TemplateReference,
)
REACHABLE = (*PLAIN, *VIEWS, *OPAQUE, Namespace, LoopContext, jinja2.Undefined)
CLASSES = {dict, Namespace}
FUNCTIONS = {"safe_range", "_raise_exception", "_strftime_now", "format", "format_map"}

# Each name that a template has, handed to Python by a test of its own.
NAMES = """
{% macro macro(x) %}
{{ caller() if caller else varargs ~ kwargs }}{{ grab(caller, varargs, kwargs) is true }}
{% endmacro %}
{% block block %}{% endblock %}
{% call macro(1) %}{% endcall %}
{% for m in messages recursive %}{% if grab(loop, loop.cycle, loop.changed) is true %}{% endif %}{% endfor %}
{% set ns = namespace(a=1) %}
{% if grab(range, dict, namespace, raise_exception, strftime_now, macro, self, self.block, self['block'], ns,
    messages, tools, eos_token, ''.format, ''.format_map, ''.upper, dict['x'], missing,
    1, 1.5, true, none, (1,), [1], {1: 2}, range(3), (messages|map('upper')), (messages|select),
    (messages|groupby('role'))[0], (messages|batch(1)),
    (messages|slice(2)), {}.items(), 'x'.encode()) is true %}{% endif %}
"""
ARGUMENTS = [(), ("x",), (1,), ("x", "y"), ([1, 2],), ({"a": 1},), ("{0}", 1), (1, 2)]
VARIABLES = {"messages": [{"role": "user", "content": "hi"}], "tools": None, "eos_token": "</s>"}


def named_values():
    environment = sandbox.ChatEnvironment()
    found = []

    def grab(*values):
        found.extend(values)
        return True

    environment.tests["true"] = bool
    environment.from_string(NAMES).render(VARIABLES | {"grab": grab})
    return [value for value in found if value is not grab]


def attributes(environment, value):
    """Read every attribute as a template does, in each of its ways."""
    for name in dir(value):
        for read in (environment.getattr, environment.getitem):
            try:
                yield f".{name}", read(value, name)
            except Exception:
                continue


def results(environment, context, value):
    if not callable(value):
        return
    for arguments in ARGUMENTS:
        try:
            yield f"{arguments}", environment.call(context, value, *arguments)
        except Exception:
            continue


def items(value):
    """Return the first items of a container or iterator, and all values of a dict."""
    try:
        first = list(islice(iter(value), 3)) if isinstance(value, (dict, list, tuple, *VIEWS)) else []
    except Exception:
        return []
    return [("[...]", item) for item in (*first, *(value.values() if isinstance(value, dict) else ()))]


def key(value):
    """Tell kinds of values apart: one of each is enough."""
    owner = getattr(value, "__self__", None)
    inside = frozenset(type(item) for _, item in items(value)) if isinstance(value, (dict, list, tuple)) else None
    return type(value), getattr(value, "__name__", None), type(owner), inside


def fault(value):
    """Name the reason why a template must not have this value; None if it may."""
    if not isinstance(value, REACHABLE):
        return f"a {type(value).__name__}"
    if isinstance(value, type) and value not in CLASSES:
        return f"the class {value.__name__}"
    if isinstance(value, types.FunctionType) and value.__name__ not in FUNCTIONS:
        return f"the function {value.__name__}"
    if isinstance(value, types.MethodType) and not isinstance(value.__self__, (LoopContext, Namespace)):
        return f"a method of a {type(value.__self__).__name__}"
    return None


def faults(environment, start):
    """Walk over attributes, results of calls and items; return the paths to what a template must not have."""
    context = environment.from_string("x").new_context(VARIABLES)
    seen, found = set(), []
    waiting = [("", value) for value in start]
    while waiting:
        path, value = waiting.pop()
        if key(value) in seen:
            continue
        seen.add(key(value))
        if (reason := fault(value)) is not None:
            found.append(f"{path}: {reason}")
            continue
        steps = chain(attributes(environment, value), results(environment, context, value), items(value))
        waiting += [(f"{path} {type(value).__name__}{step}", result) for step, result in steps]
    return found


def test_nothing_but_data_and_listed_functions_can_be_reached():
    start = named_values()
    assert len(start) > 30
    assert faults(sandbox.ChatEnvironment(), start) == []


@pytest.mark.parametrize("name", sandbox.ChatEnvironment().filters)
def test_filters_lead_nowhere_else(name):
    environment = sandbox.ChatEnvironment()
    pieces = ("messages", "'text'", "5", "{'a': 1}", "[1, 2]", "[[1, 2], [3, 4]]")
    found = []
    for piece in pieces:
        for arguments in ("", "('content')", "(2)", "('a', 'b')"):
            try:
                source = f"{{{{ grab({piece}|{name}{arguments}) }}}}"
                environment.from_string(source).render(VARIABLES | {"grab": found.append})
            except Exception:
                continue
    assert found
    assert faults(environment, found) == []


def test_the_walk_finds_an_open_door():
    """A method that gives the environment away, as an earlier sandbox of ours had one."""

    class Open(sandbox.ChatEnvironment):
        def wrap_str_format(self, value):
            return partial(str, self) if getattr(value, "__name__", "") == "format" else None

    assert " str.format: a partial" in faults(Open(), ["text"])
