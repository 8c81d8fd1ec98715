"""JSON objects that come in parts."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinychat.tools.json_object import JsonObject

ALPHABET = ["{", "}", "[", "]", ":", ",", '"', "\\", "u", "0", "1", "-", "+", ".", "e", "E", "true", "false", "null"]


def fed(text):
    checked = JsonObject()
    return checked.feed(text), checked.status


def is_object(text):
    try:
        return isinstance(json.loads(text, parse_constant=lambda name: [][1]), dict)
    except (ValueError, IndexError):
        return False


@given(parts=st.lists(st.sampled_from([*ALPHABET, " ", "\n", "a", '"a"', '"a":1', "{}", "[1]"]), max_size=10))
@settings(max_examples=2000, deadline=None)
@example(parts=['{"a":1', ".", "e", "5", "}"])
@example(parts=['{"a":', "-", "}"])
@example(parts=['{"a":[', ",", "]}"])
@example(parts=['{"a":[1', ",", "]}"])
@example(parts=['{"a":1,', "}"])
def test_what_is_whole_is_json_and_all_json_is_whole(parts):
    text = "{" + "".join(parts)
    (added, length), status = fed(text)
    objects = [end for end in range(1, len(text) + 1) if is_object(text[:end])]
    if status == "whole":
        assert is_object(added)
        assert "\n" in text[:length] or objects[:1] == [length]
    else:
        assert not objects


@pytest.mark.parametrize("text", ["[1]", "1", '"a"', " {}", "tru"])
def test_anything_but_an_object_is_refused_at_once(text):
    assert fed(text) == (("", 0), "bad")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"a": 01}', '{"a": 0'),
        ('{"a": 1.}', '{"a": 1.'),
        ("{'a': 1}", "{"),
        ('{"a" 1}', '{"a" '),
        ('{"a": "\\x"}', '{"a": "\\'),
        ('{"a": "\\u00g0"}', '{"a": "\\u00'),
        ('{"a": NaN}', '{"a": '),
        ('{"a": 1]', '{"a": 1'),
        ('{"a": ٣}', '{"a": '),
    ],
)
def test_the_first_wrong_character_ends_it(text, good):
    assert fed(text) == ((good, len(good)), "bad")


def test_depth_and_length_are_bounded():
    assert fed('{"a":' + "[" * 100)[1] == "bad"
    assert fed('{"a":' + "1" * 1000)[1] == "bad"
    assert fed('{"a":' + "[" * 60 + "]" * 60 + "}")[1] == "whole"
