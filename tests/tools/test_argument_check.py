"""Arguments of a call against the schema of a tool."""

import pytest

from tinychat.errors import ToolError
from tinychat.tools.argument_check import check_arguments

TREE = {"$ref": "#/$defs/node"}
NODE = {"type": "object", "properties": {"next": TREE, "n": {"type": "integer"}}, "required": ["n"]}


def problem(schema, value):
    """Return the problem of one argument, x, None if there is none."""
    try:
        check_arguments({"x": value}, {"type": "object", "properties": {"x": schema}, "$defs": {"node": NODE}})
    except ToolError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("schema", "right", "wrong", "message"),
    [
        ({"type": "integer"}, [1, -2, 3.0, 10**400], [1.5, "1", True, None], "must be integer, not"),
        ({"type": "number"}, [1, 1.5], ["1", False], "must be number, not"),
        ({"type": "string"}, [""], [1, ["a"]], "must be string, not"),
        ({"type": ["string", "null"]}, ["a", None], [1], "must be string or null, not integer"),
        ({"type": "boolean"}, [True], [0, "true"], "must be boolean, not"),
        ({"type": "object"}, [{}], [[]], "must be object, not array"),
        ({"enum": ["a", 1, None]}, ["a", 1, 1.0, None], ["b", True], "must be one of 'a', 1, None"),
        ({"const": 0}, [0], [False, 1], "must be 0"),
        ({"minimum": 1, "maximum": 3}, [1, 3, "text"], [0], "must be at least 1"),
        ({"exclusiveMinimum": 1}, [1.1], [1], "must be more than 1"),
        ({"exclusiveMaximum": 1}, [0], [1], "must be less than 1"),
        ({"maximum": 3}, [3], [4], "must be at most 3"),
        ({"minLength": 2}, ["ab", 1], ["a"], "must have at least 2 characters"),
        ({"maxLength": 2}, ["ab"], ["abc"], "must have at most 2 characters"),
        ({"minItems": 1}, [[1]], [[]], "must have at least 1 items"),
        ({"maxItems": 1}, [[1]], [[1, 2]], "must have at most 1 items"),
        ({"items": {"type": "integer"}}, [[], [1]], [[1, "a"]], "x[1] must be integer, not string"),
        ({"prefixItems": [{"type": "null"}], "items": False}, [[None]], [[None, 1]], "x[1] must be left out"),
        ({"properties": {"a": {"type": "null"}}}, [{"a": None, "b": 1}], [{"a": 1}], "x.a must be null, not integer"),
        ({"additionalProperties": {"type": "null"}}, [{"a": None}], [{"a": 1}], "x.a must be null"),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            [{"a": 1}, {}],
            [{"b": 1}],
            "there is no argument x.b: they are a",
        ),
        ({"additionalProperties": False, "patternProperties": {"^a": {}}}, [{"ab": 1}], [], ""),
        ({"required": ["a"]}, [{"a": 1}, "text"], [{}], "the argument x.a is missing"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, [None, 1], ["a"], "x must be integer, not string"),
        ({"anyOf": [{"type": "null"}, {"type": "null"}]}, [None], ["a"], "x fits nothing"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, [0, 4], [2], "x fits more than one of the forms"),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [2], [0, 4], "must be at"),
        (TREE, [{"n": 1, "next": {"n": 2}}], [{"n": 1, "next": {}}], "the argument x.next.n is missing"),
        (False, [], [1], "x must be left out"),
    ],
)
def test_keywords(schema, right, wrong, message):
    assert [problem(schema, value) for value in right] == [None] * len(right)
    assert [message in (problem(schema, value) or "valid") for value in wrong] == [True] * len(wrong)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": 5},
        {"properties": [1], "required": {"a": 1}},
        {"minimum": "1", "enum": "abc", "items": 5, "anyOf": {}},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/no/such/part"},
        {"$ref": 5},
        True,
        None,
        "schema",
    ],
)
@pytest.mark.parametrize("value", [1, "a", [1], {"a": 1}])
def test_parts_that_make_no_sense_ask_for_nothing(schema, value):
    assert problem(schema, value) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/properties/x"},
        {"anyOf": [{"$ref": "#/properties/x"}] * 2},
        {"allOf": [{"allOf": [{"allOf": [{"allOf": [{"anyOf": [{}] * 20}] * 20}] * 20}] * 20}]},
    ],
)
def test_schemas_without_end_are_refused(schema):
    assert "too deep or too large" in (problem(schema, 1) or "valid")


def test_a_message_is_one_short_line_whatever_the_names():
    for schema, value in [({"enum": ["\x1b[2J" * 999]}, 1), ({"additionalProperties": False}, {"\u202e\n" * 999: 1})]:
        message = problem(schema, value)
        assert message.isprintable() and len(message) < 500
