"""Python functions as tools."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union

import pytest

from tinychat.errors import ToolError
from tinychat.tools.own.functions import function_tool, functions_of
from tinychat.tools.own.type_schemas import schema_of_type, value_of_type
from tinychat.tools.runnable import Toolbox, ToolResult


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


@dataclass
class Place:
    name: str
    height: float = 0.0
    tags: list[str] = field(default_factory=list)


class Range(TypedDict):
    low: int
    high: NotRequired[int]


@dataclass
class Tree:
    inner: "Tree"


OBJECT = {"type": "object", "additionalProperties": False}
PLACE = OBJECT | {
    "properties": {
        "name": {"type": "string"},
        "height": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("hint", "schema", "given", "value"),
    [
        (int, {"type": "integer"}, 3.0, 3),
        (float, {"type": "number"}, 3, 3.0),
        (str, {"type": "string"}, "a", "a"),
        (bool, {"type": "boolean"}, True, True),
        (None, {"type": "null"}, None, None),
        (Any, {}, {"a": 1}, {"a": 1}),
        (list, {"type": "array"}, [1], [1]),
        (dict, {"type": "object"}, {"a": 1}, {"a": 1}),
        (list[float], {"type": "array", "items": {"type": "number"}}, [1], [1.0]),
        (Sequence[Unit], {"type": "array", "items": {"enum": ["C", "K"], "type": "string"}}, ["K"], [Unit.KELVIN]),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1.0}, {"a": 1}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}, "a", "a"),
        (Literal["a", 1], {"enum": ["a", 1]}, 1, 1),
        (Unit, {"enum": ["C", "K"], "type": "string"}, "C", Unit.CELSIUS),
        (Union[Unit, None], {"anyOf": [{"enum": ["C", "K"], "type": "string"}, {"type": "null"}]}, "C", Unit.CELSIUS),  # noqa: UP007
        (Unit | None, {"anyOf": [{"enum": ["C", "K"], "type": "string"}, {"type": "null"}]}, None, None),
        (Annotated[int, "How many."], {"type": "integer", "description": "How many."}, 1.0, 1),
        (Place, PLACE, {"name": "a", "height": 2}, Place("a", 2.0)),
        (
            list[Place] | str,
            {"anyOf": [{"type": "array", "items": PLACE}, {"type": "string"}]},
            [{"name": "a"}],
            [Place("a")],
        ),
        (
            Range,
            OBJECT | {"properties": {"low": {"type": "integer"}, "high": {"type": "integer"}}, "required": ["low"]},
            {"low": 1.0},
            {"low": 1},
        ),
    ],
)
def test_types(hint, schema, given, value):
    hint = type(None) if hint is None else hint
    assert schema_of_type(hint) == schema
    found = value_of_type(given, hint)
    assert found == value and type(found) is type(value)


def google(city: str, days: int = 3, unit: Literal["C", "K"] = "C", place: Place | None = None) -> dict[str, Any]:
    """Tell the weather
    of a city.

    Of the days that follow.

    Args:
        city (str): Its name: as
            its people say it.
        days: How many days.

    Returns:
        days: not this
    """
    return {"city": city, "days": days, "unit": unit, "place": place}


def numpy(city: str, days: int = 3, unit: Literal["C", "K"] = "C", place: Place | None = None) -> dict[str, Any]:
    """Tell the weather of a city.

    Of the days that follow.

    Parameters
    ----------
    city : str
        Its name: as
        its people say it.
    days
        How many days.

    Returns
    -------
    days : dict
        Not this.
    """
    return google(city, days, unit, place)


def sphinx(city: str, days: int = 3, unit: Literal["C", "K"] = "C", place: Place | None = None) -> dict[str, Any]:
    """Tell the weather of a city. Of the days that follow.

    :param str city: Its name: as
        its people say it.
    :param days: How many days.
    :returns: days: not this
    """
    return google(city, days, unit, place)


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_a_function_becomes_a_tool(function):
    tool = function_tool(function)
    assert tool.definition.name == function.__name__
    assert tool.definition.description == "Tell the weather of a city. Of the days that follow."
    assert tool.definition.parameters == OBJECT | {
        "properties": {
            "city": {"type": "string", "description": "Its name: as its people say it."},
            "days": {"type": "integer", "description": "How many days.", "default": 3},
            "unit": {"enum": ["C", "K"], "type": "string", "default": "C"},
            "place": {"anyOf": [PLACE, {"type": "null"}]},
        },
        "required": ["city"],
    }
    box = Toolbox([tool])
    arguments = box.check(function.__name__, '{"city": "Köln", "place": {"name": "Dom", "height": 157}}')
    assert box.run(function.__name__, arguments) == ToolResult(
        '{"city": "Köln", "days": 3, "unit": "C", "place": {"name": "Dom", "height": 157.0, "tags": []}}'
    )
    with pytest.raises(ToolError, match=r"^there is no argument town: they are city, days, unit, place$"):
        box.check(function.__name__, {"city": "a", "town": "b"})


class Counter:
    def __init__(self):
        self.n = 0

    def add(self, n: int) -> None:
        self.n += n


def test_methods_are_functions_too():
    counter = Counter()
    box = Toolbox([function_tool(counter.add)])
    assert box.run("add", box.check("add", {"n": 5})) == ToolResult("done")
    assert counter.n == 5


def test_a_function_may_ask_whether_it_is_stopped():
    def wait(seconds: float, stop: threading.Event) -> str:
        return f"stopped: {stop.wait(seconds)}"

    tool, stop = function_tool(wait), threading.Event()
    assert [*tool.definition.parameters["properties"]] == ["seconds"]
    stop.set()
    assert Toolbox([tool]).run("wait", {"seconds": 60}, stop) == ToolResult("stopped: True")


def test_a_failure_is_a_result():
    def fail(day: int) -> date:
        return date(2026, 1, day)

    box = Toolbox([function_tool(fail)])
    assert box.run("fail", {"day": 2}) == ToolResult('"2026-01-02"')
    result = box.run("fail", {"day": 99})
    assert result.is_error and result.text.startswith("ValueError: day")


def no_hint(a):
    """Has none."""


async def is_async(a: int) -> None:
    """Wait."""


def of_bytes(a: bytes) -> None:
    """Take what no model writes."""


def of_many(*a: int) -> None:
    """Take any number."""


def of_tree(a: Tree) -> None:
    """Take what has no end."""


def of_nothing_known(a: "Nobody") -> None:  # noqa: F821
    """Take what is not there."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_hint, "the parameter a has no type hint"),
        (is_async, "it is async"),
        (of_bytes, "the type <class 'bytes'> is none that a model can write"),
        (of_many, "the parameter a cannot be given by its name"),
        (of_tree, "has a type that contains itself"),
        (of_nothing_known, "name 'Nobody' is not defined"),
        (len, "cannot be a tool"),
    ],
)
def test_functions_that_cannot_be_tools(function, problem):
    with pytest.raises(ToolError, match=f"^the function {function.__name__} .*{problem}"):
        function_tool(function)


FILE = '''
"""Functions of a user."""
from __future__ import annotations
from dataclasses import dataclass
from os.path import join

@dataclass
class Point:
    x: int

def double(point: Point) -> int:
    """Double it."""
    return _twice(point.x)

def _twice(n):
    return 2 * n
'''


def no_lines(name, line):
    raise AssertionError(f"{name} prints {line}")


def test_the_public_functions_of_a_file(tmp_path, monkeypatch):
    path = tmp_path / "own.py"
    path.write_text(FILE)
    (tool,) = functions_of(path, no_lines)
    box = Toolbox([tool])
    assert tool.definition.description == "Double it."
    assert box.run("double", box.check("double", '{"point": {"x": 21}}')) == ToolResult("42")
    # Nothing is imported from the folder that somebody works in, and nothing is left there.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neighbour.py").write_text("raise SystemExit('run')")
    path.write_text("import neighbour")
    with pytest.raises(ToolError, match="ModuleNotFoundError"):
        functions_of(path, no_lines)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["neighbour.py", "own.py"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1", "has no public functions"),
        ("def f(:", r"cannot be run: SyntaxError: .*\(line 1\)"),
        ("\n1 / 0", r"cannot be run: ZeroDivisionError: division by zero \(line 2\)"),
        ("raise SystemExit(3)", r"cannot be run: SystemExit: 3 \(line 1\)"),
        ("def f(a): pass", "the function f cannot be a tool: the parameter a has no type hint"),
        ("\0", "holds NUL bytes"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, source, problem):
    path = tmp_path / "own.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(ToolError, match=problem) as error:
        functions_of(path, no_lines)
    assert str(error.value).isprintable()


PRINTING = '''
import io
import threading

print("loaded")


def count(n: int, stop: threading.Event) -> str:
    """Count."""
    print("one", "two", sep="-", end="-")
    print("three\\nfour")
    print("elsewhere", file=(other := io.StringIO()))
    thread = threading.Thread(target=print, args=["beside"])
    thread.start()
    thread.join()
    print("rest", end="")
    if n:
        stop.set()
        print("never told")
        raise ValueError("stopped")
    return other.getvalue()
'''


def test_what_a_function_prints_is_told_with_its_name(tmp_path, capfd):
    path, lines = tmp_path / "own.py", []
    path.write_text(PRINTING)
    (tool,) = functions_of(path, lambda *told: lines.append(told))
    assert lines == [("own.py", "loaded")]
    box = Toolbox([tool])
    told = [
        ("own.py", "loaded"),
        ("count", "one-two-three"),
        ("count", "four"),
        ("own.py", "beside"),
        ("count", "rest"),
    ]
    assert box.run("count", {"n": 0}) == ToolResult("elsewhere\n")
    assert lines == told
    del lines[:]
    assert box.run("count", {"n": 1}).is_error
    assert lines == told[1:-1], "nothing is told of a call that was stopped"
    assert capfd.readouterr() == ("", "")
