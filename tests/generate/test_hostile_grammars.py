"""Schemas and grammars that compute for minutes, fill the memory, or overflow a stack in llguidance."""

import json
import resource
import time
from itertools import product

import pytest
from fake_model import fake_model

from tinychat.errors import SettingError
from tinychat.generate.grammar import Grammar
from tinychat.limited_process import SECONDS

pytestmark = pytest.mark.slow

pytest.importorskip("llguidance")


def references(count, link, end):
    """Return a schema of definitions of which each refers to the next."""
    definitions = {f"d{number}": link(f"#/$defs/d{number + 1}") for number in range(count)}
    return {"$defs": definitions | {f"d{count}": end}, "$ref": "#/$defs/d0"}


def required(target):
    return {"type": "object", "properties": {"a": {"$ref": target}}, "required": ["a"]}


def alone(target):
    return {"$ref": target}


def first_of(target):
    return {"allOf": [{"$ref": target}]}


def items(target):
    return {"type": "array", "items": {"$ref": target}, "minItems": 1}


def rules(count, name, rest):
    """Return a Lark grammar of rules, or of terminals, of which each holds the next."""
    chain = "".join(f"{name}{number}: {name}{number + 1} {rest}\n" for number in range(count))
    return f'start: {name}0\n{chain}{name}{count}: "x"\n'


def multiples(*numbers):
    return {"type": "integer", "allOf": [{"multipleOf": number} for number in numbers]}


def referred(*numbers):
    return {
        "$defs": {"a": {"type": "integer", "multipleOf": numbers[0]}},
        "allOf": [{"$ref": "#/$defs/a"}, *({"multipleOf": number} for number in numbers[1:])],
    }


def nested(count, wrap):
    schema = {"type": "integer", "multipleOf": 2147483648}
    for _ in range(count):
        schema = wrap(schema)
    return schema


MULTIPLES = [multiples(9973, 9967), referred(9973, 9967)]
MULTIPLES += [nested(count, lambda schema: {"items": {"anyOf": [schema]}, "type": "array"}) for count in (0, 3)]
LINKS = (required, alone, first_of, items)
DEEP = [references(count, link, {"type": "string"}) for link in LINKS for count in (998, 2500, 6300)]
REFUSED = [json.dumps(schema) for schema in MULTIPLES + [references(998, required, {}), references(6300, alone, {})]]
SCHEMAS = [json.dumps(schema) for schema in DEEP] + [
    REFUSED[0].replace("multipleOf", escaped) for escaped in (r"multiple\u004ff", r"\u006dultipleOf")
]
RESTS = (("r", '"a"'), ("r", "| y\ny: /b/"), ("r", "r0"), ("T", '"a"'), ("T", "| /b/"))
LARK = [rules(count, name, rest) for count in (300, 3000, 6000) for name, rest in RESTS]
LARK += [f"start: %json {text}" for text in (REFUSED[0], *SCHEMAS)]
GBNF = [
    "root ::= r0\n" + "".join(f'r{n} ::= r{n + 1} "a"\n' for n in range(count)) + f'r{count} ::= "x"'
    for count in (300, 3000, 9000)
]
BOMBS = [(Grammar.from_schema, text) for text in SCHEMAS] + [(Grammar.from_text, text) for text in LARK + GBNF]


def compiled(make, text):
    """Compile a grammar for a model, as far as it lets; return the error's text, if there was one."""
    started = time.monotonic()
    try:
        fake_model(lambda ids: None).constraint(make(text, "g")).start().allowed()
    except SettingError as error:
        return str(error)
    finally:
        assert time.monotonic() - started < SECONDS + 4
    return None


@pytest.mark.parametrize("number", range(len(BOMBS)))
def test_a_bomb_ends_in_one_line_or_is_none(number):
    problem = compiled(*BOMBS[number])
    assert problem is None or (len(problem) < 240 and "\n" not in problem), problem


def test_bombs_are_refused_and_the_next_grammar_is_answered():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in REFUSED:
        problem = compiled(Grammar.from_schema, text)
        assert problem is not None and problem.startswith("g cannot be used: it ")
        assert compiled(Grammar.from_schema, '{"type": "boolean"}') is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_long_complaint_of_the_library_is_cut():
    problem = compiled(Grammar.from_schema, json.dumps({"$ref": "#/" + "a" * 29_000}))
    assert problem is not None and len(problem) < 240


@pytest.mark.parametrize(("depth", "link"), [*product((5, 25), (required, items, alone))])
def test_ordinary_depths_compile(depth, link):
    assert Grammar.from_schema(json.dumps(references(depth, link, {"type": "string"}))).lark
