"""The table of settings: it is whole, agrees with what it cannot import, and every entry follows from it."""

import inspect
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import click
import pytest

import tinychat
from tinychat.chat.settings import SETTABLE
from tinychat.cli import command_line
from tinychat.configuration import parse_configuration
from tinychat.conversation.overflow import OverflowPolicy
from tinychat.engine.context import MAX_CONTEXT
from tinychat.errors import ConfigurationError, FieldError
from tinychat.kernels.sizes import STORAGE
from tinychat.settings import CONFIG, FLAG, LINE, SET, SETTINGS, LoadSettings, ReplyKeywords, ReplySettings, names

CHECKED = [
    ("cache_memory", 1, 1),
    ("share", 50, 50),
    ("share", "50%", 50),
    ("share", 0, "share must be between 1% and 100%, not 0"),
    ("share", "101%", "share must be between 1% and 100%, not 101"),
    ("share", 0.5, "share must be a percentage, such as 50%, not 0.5"),
    ("cache_memory", 0, "cache_memory must be 1 or more, not 0"),
    ("cache_memory", "2G", "cache_memory must be a number of bytes, not '2G'"),
    ("context", None, None),
    ("context", MAX_CONTEXT + 1, f"context must be between 1 and {MAX_CONTEXT}, not {MAX_CONTEXT + 1}"),
    ("context", True, "context must be a whole number of tokens, not True"),
    ("draft", 1, "draft must be true, false or the name of a model, not 1"),
    ("draft", " ", "draft must be true, false or the name of a model, not ' '"),
    ("kv", ["f32"], "kv must be one of bf16, f16, int8, f32, not ['f32']"),
    ("stop", "end", ("end",)),
    ("stop", ["a", ""], "stop must not be empty: an empty text would end every reply at once"),
    ("system", "", ""),
    ("system", "x" * 10**6, "x" * 10**6),
    ("system", b"x" * 10**6, f"system must be a text, not b'{'x' * 75}..."),
    ("think", 0, "off"),
    ("think", " On", "on"),
    ("think", "12", 12),
    ("think", True, "think must be on, off, auto or a number of tokens, not True"),
    ("think", 1 << 64, f"think must be on, off, auto or a number of tokens, not {1 << 64}"),
    ("think", "9" * 100, f"think must be on, off, auto or a number of tokens, not '{'9' * 76}..."),
]

READ = [
    ("cache_memory", "1.5g", 3 << 29),
    ("share", "50%", 50),
    ("share", "50", 50),
    ("share", "0%", "share must be between 1% and 100%, not 0"),
    ("share", "half", "share must be a percentage, such as 50%, not 'half'"),
    ("cache_memory", "10", "cache_memory must have a unit: did you mean 10M? 10B would be bytes"),
    ("cache_memory", "10B", 10),
    ("cache_memory", "10m", 10 << 20),
    ("cache_memory", "100000", 100000),
    ("cache_memory", "1,5G", "cache_memory must be a size, such as 500M or 2G, not '1,5G': did you mean 1.5G?"),
    ("cache_disk", "0", 0),
    ("cache_memory", "lots", "cache_memory must be a size, such as 500M or 2G, not 'lots'"),
    ("context", "8k", 8192),
    ("context", "1.5K", 1536),
    ("context", "8kB", "context must be a whole number of tokens, not '8kB'"),
    ("context", "8,192", "context must be a whole number of tokens, not '8,192': did you mean 8192?"),
    ("context", "0,5", "context must be a whole number of tokens, not '0,5'"),
    ("context", "none", "context must be a whole number of tokens, not 'none'"),
    ("context", None, "context must be a whole number of tokens, not None"),
    ("max_tokens", "none", None),
    ("max_tokens", None, None),
    ("seed", "7", 7),
    ("seed", "10M", 10 << 20),
    ("seed", "7.5", "seed must be a whole number or none, not 7.5"),
    ("stats", "off", False),
    ("stats", "no", "stats must be on or off, not 'no'"),
    ("stop", "none", ()),
    ("stop", r'"a\n" "b c"', ("a\n", "b c")),
    ("stop", "it's", ("it's",)),
    ("stop", "'it", "stop has a quotation mark that is not closed: 'it"),
    ("stop", ["a", "b"], ("a", "b")),
    ("temperature", "1e-1", 0.1),
    ("temperature", "0,5", "temperature must be a number, not '0,5': did you mean 0.5?"),
    ("temperature", "8k", "temperature must be a number, not '8k'"),
    ("temperature", "none", "temperature must be a number, not 'none'"),
    ("think", "2k", 2048),
    ("think", "1.5", "think must be on, off, auto or a number of tokens, not '1.5'"),
    ("temperature", "nan", "temperature must be between 0 and 100, not nan"),
    ("temperature", "9" * 5000, "temperature must be between 0 and 100, not inf"),
    ("top_k", "True", "top_k must be a whole number, not 'True'"),
]


@pytest.mark.parametrize(("name", "value", "expected"), CHECKED)
def test_values_are_checked(name, value, expected):
    outcome(SETTINGS[name].check, name, value, expected)


@pytest.mark.parametrize(("name", "text", "expected"), READ)
def test_texts_are_read(name, text, expected):
    outcome(SETTINGS[name].read, name, text, expected)


def outcome(function, name, value, expected):
    if not (isinstance(expected, str) and expected.startswith(f"{name} ")):
        found = function(value)
        assert (found, type(found)) == (expected, type(expected))
        return
    with pytest.raises(FieldError) as error:
        function(value)
    assert (str(error.value), error.value.field) == (expected, name)


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_are_values(name):
    setting = SETTINGS[name]
    assert setting.check(setting.default) == setting.default
    if not (setting.default is None and setting.scope not in ("sampling", "reply")):
        assert setting.read(setting.write(setting.default)) == setting.default
    assert setting.help
    assert not setting.part_of or setting.part_of in SETTINGS


def test_several_texts_are_shown_as_they_may_be_typed():
    texts = ("a b", "it's", ", .")
    assert SETTINGS["stop"].write(texts) == """'a b' "it's" ', .'"""
    assert SETTINGS["stop"].read(SETTINGS["stop"].write(texts)) == texts


def test_the_keywords_are_the_rows():
    assert typing.get_type_hints(ReplyKeywords) == typing.get_type_hints(ReplySettings)
    assert [*ReplyKeywords.__annotations__] == [field.name for field in fields(ReplySettings)]


def test_what_the_table_cannot_import_agrees_with_it():
    assert SETTINGS["kv"].kind.words == tuple(STORAGE)
    assert SETTINGS["overflow"].kind.words == typing.get_args(OverflowPolicy)
    assert SETTINGS["context"].kind.bounds == f"between 1 and {MAX_CONTEXT}"
    parameters = inspect.signature(tinychat.load).parameters
    defaults = {name: parameters[name].default for name in names("load")}
    assert defaults == {field.name: field.default for field in fields(LoadSettings)}
    assert {*parameters} - {*defaults} == {"path_or_name", "progress"}


def test_every_entry_follows_from_the_table():
    flags = {option.name for name in ("chat", "complete") for option in command_line.commands[name].params}
    assert {*names(entry=FLAG)} <= flags
    assert not ({*SETTINGS} - {*names(entry=FLAG)}) & flags
    assert names(entry=SET) == SETTABLE
    with pytest.raises(ConfigurationError) as error:
        parse_configuration(b"zzz = 1", Path("config.toml"))
    assert f"expected one of {', '.join(names(entry=CONFIG))}, model" in str(error.value)
    assert ", ".join(names(entry=LINE)) in command_line.commands["batch"].help


def test_a_flag_completes_the_words_of_its_setting():
    for name, begun, words in (("kv", "f", ["f16", "f32"]), ("think", "o", ["on", "off"]), ("top_k", "", [])):
        option = next(one for one in command_line.commands["chat"].params if one.name == name)
        found = option.shell_complete(click.Context(command_line.commands["chat"]), begun)
        assert [item.value for item in found] == words


def test_the_table_is_light():
    program = (
        "import sys, tinychat.settings; heavy = {'numpy', 'click', 'tomllib'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
