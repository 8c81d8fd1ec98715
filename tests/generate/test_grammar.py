"""Constrained replies: whatever the model would like to say, the text follows the schema or the grammar."""

import json
import re
import sys

import engines
import pytest
from fake_model import EOS, Continuation, fake_model

from tinychat.errors import SettingError
from tinychat.generate.grammar import Grammar
from tinychat.generate.loading import load_folder

pytest.importorskip("llguidance")

# No filter: every token that the grammar allows may come.
WILD = {"temperature": 3.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "ü", None, 2.5]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICE = {"anyOf": [{"type": "boolean"}, {"const": "</s> <eos>"}, {"type": "string", "pattern": "^[a-c]{2,4}$"}]}


def is_person(value):
    return (
        list(value) == ["name", "age", "tags"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and isinstance(value["age"], int)
        and 0 <= value["age"] <= 120
        and 1 <= len(value["tags"]) <= 3
        and all(tag in ("a", "ü", None, 2.5) for tag in value["tags"])
    )


def is_choice(value):
    return isinstance(value, bool) or value == "</s> <eos>" or re.fullmatch("[a-c]{2,4}", value) is not None


SCHEMAS = pytest.mark.parametrize(("schema", "is_valid"), [(PERSON, is_person), (CHOICE, is_choice)])


def reply(model, grammar, prompt="x", **settings):
    """Return (text, summary) of a reply that follows a grammar."""
    run = model.stream(prompt, constraint=model.constraint(grammar), **settings)
    return "".join(delta.text for delta in run), run.summary


def uniform_model(**options):
    return fake_model(lambda ids: None, context_size=512, **options)


@pytest.fixture(scope="module", params=["stories260K", "qwen2-tied"])
def random_model(request, tmp_path_factory):
    """Return a real decoder: one that knows only stories, and one of random weights."""
    if request.param == "stories260K" and not engines.STORIES.is_dir():
        pytest.skip("shared/data/stories260K is missing")
    folder = tmp_path_factory.mktemp("models") / request.param
    return load_folder(engines.convert_variant(request.param, "int4", folder), context=256)


@pytest.mark.parametrize("number", [0.01, 5, 1000, 86400, 65536, 1e6])
def test_ordinary_multiples(number):
    grammar = Grammar.from_schema(json.dumps({"type": "number", "multipleOf": number, "minimum": 0}))
    text, _ = reply(uniform_model(), grammar, seed=1, max_tokens=200, **WILD)
    assert not round(float(text) / number, 6) % 1


def test_texts_that_are_too_long():
    for make in (Grammar.from_schema, Grammar.from_text):
        with pytest.raises(SettingError, match="is longer than 256 KiB: write a smaller one"):
            make("x" * 300_000)


@SCHEMAS
@pytest.mark.parametrize("seed", range(8))
def test_json_is_valid_whatever_the_model_says(schema, is_valid, seed):
    text, summary = reply(uniform_model(), Grammar.from_schema(json.dumps(schema)), seed=seed, **WILD)
    assert summary.finish_reason == "stop"
    assert is_valid(json.loads(text)), text


@SCHEMAS
@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, **WILD}])
def test_json_of_a_decoder_is_valid(random_model, schema, is_valid, settings):
    text, summary = reply(random_model, Grammar.from_schema(json.dumps(schema)), "Once", **settings)
    assert summary.finish_reason == "stop"
    assert is_valid(json.loads(text)), text


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_a_reply_that_is_cut_says_so(max_tokens):
    text, summary = reply(uniform_model(), Grammar.from_schema(json.dumps(PERSON)), seed=1, max_tokens=max_tokens)
    assert (summary.finish_reason, summary.new_tokens) == ("length", max_tokens)
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_a_reply_that_is_whole_at_the_limit_is_not_cut():
    text, summary = reply(uniform_model(), Grammar.from_schema('{"const": 12}'), seed=1, max_tokens=2)
    assert (text, summary.finish_reason) == ("12", "stop")


def test_a_full_context_cuts_too():
    model = fake_model(lambda ids: None, context_size=6)
    _, summary = reply(model, Grammar.from_schema(json.dumps(PERSON)), seed=1)
    assert summary.finish_reason == "context"


@pytest.mark.parametrize("favourite", [EOS, ord(" "), ord("\n"), ord("9"), 260])
def test_a_stubborn_model_cannot_end_early_pad_or_speak_control_tokens(favourite):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    text, summary = reply(fake_model(lambda ids: favourite), Grammar.from_schema(json.dumps(schema)), seed=1, **WILD)
    assert summary.finish_reason == "length" or isinstance(json.loads(text)["a"], bool)
    assert re.search(r"\s{18}", text) is None
    assert set(text) & set("<>") == set()


def test_the_filters_choose_among_what_the_grammar_allows():
    model = fake_model(Continuation({"x": "yes"}))
    text, _ = reply(model, Grammar.from_text('start: "no" | "yes!"'), top_k=1)
    assert text == "yes!"


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('start: ("ab" | /[0-9]/){2}', r"(ab|[0-9]){2}"),
        ('root ::= "a" | "b" root2\nroot2 ::= [x-z]', r"a|b[x-z]"),
        ('start: " é" "\\n" WORD\nWORD: /[a-z]{1,3}/', r" é\n[a-z]{1,3}"),
    ],
)
def test_grammars_in_lark_and_gbnf(random_model, text, pattern):
    for model in (random_model, uniform_model()):
        for joins_prompt in (True, False):
            found, summary = reply(model, Grammar.from_text(text), seed=2, joins_prompt=joins_prompt, **WILD)
            assert summary.finish_reason == "stop"
            assert re.fullmatch(pattern, found), found


def test_the_model_ends_where_the_grammar_lets_it():
    model = fake_model(Continuation({"x": "ab"}))
    text, summary = reply(model, Grammar.from_text("start: /[a-z]+/"), temperature=0.0)
    assert (text, summary.finish_reason) == ("ab", "stop")


def test_a_model_without_stop_tokens_ends_too():
    model = uniform_model()
    model.stop_ids = frozenset()
    text, summary = reply(model, Grammar.from_schema(json.dumps(CHOICE)), seed=1, **WILD)
    assert summary.finish_reason == "stop"
    assert is_choice(json.loads(text))


def test_each_reply_begins_the_grammar_anew():
    model = uniform_model()
    constraint = model.constraint(Grammar.from_text('start: "ab"'))
    for _ in range(2):
        assert "".join(delta.text for delta in model.stream("x", constraint=constraint)) == "ab"


def test_control_tokens_that_a_grammar_names_stay_forbidden():
    with pytest.raises(SettingError, match="the grammar wants a text here that no token of the model can begin"):
        reply(uniform_model(), Grammar.from_text('start: "a" <[258]> "b"'), seed=1)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "s.json is no JSON: "),
        ("[" * 100_000, "s.json is no JSON: "),
        ("[]", "s.json is no JSON schema: it must be an object"),
        ('{"type": "nothing"}', "s.json cannot be used: Invalid type: nothing"),
        ('{"type": "string", "pattern": "(?=a)"}', "s.json cannot be used: regex parse error: "),
        ('{"$ref": "http://localhost/x"}', "s.json cannot be used: Resource 'http://localhost/x' is not present"),
        ('{"uniqueItems": true, "type": "array"}', "s.json cannot be used: Unimplemented keys: "),
        ('{"minimum": 3, "maximum": 2, "type": "integer"}', "s.json cannot be used: "),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_one_line(schema, message):
    with pytest.raises(SettingError, match=f"^{re.escape(message)}.*$"):
        Grammar.from_schema(schema, "s.json")


@pytest.mark.parametrize("text", ["", "start: foo", "start: (", "root ::= (", "start: /(/", "\x00", "%import os"])
def test_a_grammar_that_cannot_be_used_is_refused_in_one_line(text):
    with pytest.raises(SettingError, match=r"^g\.lark cannot be used: .*$"):
        Grammar.from_text(text, "g.lark")


def test_everything_is_valid_under_the_schema_true():
    text, _ = reply(fake_model(Continuation({"x": "[1]"})), Grammar.from_schema("true"), temperature=0.0)
    assert text == "[1]"


def test_without_the_library_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my venv" / "bin" / "python"))
    with pytest.raises(SettingError, match=r"needs llguidance: '/.*/my venv/bin/python' -P -m pip install llguidance$"):
        Grammar.from_schema("{}")
    pip = tmp_path / "my venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.touch()
    with pytest.raises(SettingError, match=r"needs llguidance: '/.*/my venv/bin/pip' install llguidance$"):
        Grammar.from_schema("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=r"needs llguidance: 'my venv/bin/pip' install llguidance$"):
        Grammar.from_schema("{}")
