"""Prompt templates of the configuration file: how they are filled, asked and completed."""

import os
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from console import Console
from fake_model import Replies, fake_model

from tinychat.cli import command_line
from tinychat.commands.prompt_template import fill_template, variables_in
from tinychat.settings import LoadSettings

FILE = """
system = "General."
[templates.translate]
prompt = "Translate to {language}: {input}"
system = "You know {language}."
model = "story"
context = 200
defaults = { language = "English" }
[templates.joke]
prompt = "Tell a joke about {animal}."
[templates.summary]
prompt = "Summarise."
temperature = 0.0
"""


@pytest.fixture
def console(monkeypatch, capsys):
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text(FILE)
    return Console(fake_model(Replies("Hello!", "Fine.")), monkeypatch, capsys)


def asked(console):
    return bytes(i for i in console.model.sequence.ids if i < 256).decode().removesuffix("Hello!")


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        (
            ["-t", "translate", "language=German"],
            b"Good morning\n",
            "You know German.Translate to German: Good morning",
        ),
        (["-t", "translate"], b"hi", "You know English.Translate to English: hi"),
        (["-t", "translate", "language=very old German", "hi there"], b"", "Translate to very old German: hi there"),
        (["language=", "-t", "translate"], b"hi", "Translate to : hi"),
        (["-t", "translate", "--system", "Mine."], b"hi", "Mine.Translate"),
        (["-t", "translate", "language={input}"], b"{language}", "Translate to {input}: {language}"),
        (["-t", "joke", "animal=goats"], b"", "General.Tell a joke about goats."),
        (["-t", "joke", "animal=goats"], b"First.\n", "General.First.\nTell a joke about goats."),
        (["-t", "summary", "-p", "a=b"], b"", "General.a=b\nSummarise."),
        (["complete", "-t", "summary", "-"], b"All of it.", "All of it.\nSummarise."),
    ],
)
def test_a_template_is_filled_and_asked(console, arguments, stdin, text):
    assert console.run(*arguments, stdin=stdin)[:2] == (0, "Hello!\n")
    assert text in asked(console)


def test_its_model_and_settings_count_unless_the_command_line_says_otherwise(console):
    console.run("-t", "translate", stdin=b"hi")
    assert console.loaded == [("story", LoadSettings(context=200))]
    console.run("-t", "translate", "-m", "other", "--context", "100", stdin=b"hi")
    assert console.loaded[1] == ("other", LoadSettings(context=100))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-t", "joke"], 2, "template joke needs a value for animal: add animal=VALUE"),
        (["-t", "translate"], 2, "template translate needs a value for input: pipe a text in, or give it as PROMPT"),
        (["-t", "joke", "animl=goats"], 2, "unknown variable 'animl' of template joke; expected animal"),
        (["-t", "summary", "a=b"], 2, "unknown variable 'a' of template summary; expected none"),
        (["-t", "translate", "input=x"], 2, "unknown variable 'input' of template translate; expected language"),
        (["-t", "sumary"], 1, "config.toml has no template 'sumary': did you mean summary?"),
        (["-t", "x"], 1, "has no template 'x'; there are translate, joke, summary"),
    ],
)
def test_what_is_missing_is_named_in_one_line(console, arguments, code, message):
    found, out, err = console.run(*arguments)
    assert (found, out, err.count("\n"), console.loaded) == (code, "", 1, [])
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[templates.a]\nmodel = 'x'", "line 1: a must have a prompt, such as 'Summarise this: {input}'"),
        ("[templates.a]\nprompt = ' '", "line 1: a must have a prompt"),
        ("[templates.a]\nprompt = 'x'\ndefaults = 3", "line 3: defaults must be a section, as [templates.a.defaults]"),
        ("[templates.a]\nprompt = 'x'\n[templates.a.defaults]\nb = 3", "line 4: b must be a text"),
        ("[templates.a]\nprompt = 'x'\ntop_k = -1", "line 3: top_k must be"),
        ("[templates.a]\npromt = 'x'", "line 2: unknown key 'promt': did you mean prompt?"),
    ],
)
def test_a_wrong_template_is_named_with_its_line(console, text, message):
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text(text)
    code, out, err = console.run("hello you")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err


@pytest.mark.parametrize(
    ("prompt", "filled"),
    [
        ("{a} and {{a}} and {b c} and {}", "x and {a} and {b c} and {}"),
        ('{"key": {a}, "other": {"n": [1]}}', '{"key": x, "other": {"n": [1]}}'),
        ("{a.__class__} {a!r} {a[0]}", "{a.__class__} {a!r} {a[0]}"),
    ],
)
def test_only_names_in_braces_are_places(prompt, filled):
    assert fill_template("t", {"prompt": prompt + "{a}"}, {"a": "x"}, "")[0] == filled + "x"


def test_words_that_are_variables():
    words = ["a=b", "why is a=b?", "x", "_n=1=2", "=3", "4=5", "long=two\nlines"]
    assert variables_in(words) == (
        ["why is a=b?", "x", "=3", "4=5"],
        {"a": "b", "_n": "1=2", "long": "two\nlines"},
    )


def test_a_shell_completes_the_names_of_templates(console):
    completion = ShellComplete(command_line, {}, "tinychat", "_TINYCHAT_COMPLETE")
    found = completion.get_completions(["complete", "-t"], "s")
    assert [item.value for item in found] == ["summary"]
    assert isinstance(command_line.commands["complete"], click.Command)


def test_the_configuration_is_shown_with_its_templates(console):
    _, out, _ = console.run("config")
    assert "[templates.joke]\n  prompt  'Tell a joke about {animal}.'\n" in out
