"""What words mean where no command is named, and what they mean to complete."""

import os
from pathlib import Path

import click
import pytest
from console import Console
from fake_model import Replies, fake_model

from tinychat.cli import command_line
from tinychat.commands.default_command import implied_command, model_and_prompt
from tinychat.commands.misspellings import edits
from tinychat.errors import StoreError
from tinychat.settings import LoadSettings
from tinychat.store.local import store_folder


@pytest.fixture(autouse=True)
def stored_model():
    folder = store_folder() / "story"
    folder.mkdir(parents=True)
    (folder / "tinychat.json").write_text("{}")


@pytest.fixture
def console(monkeypatch, capsys):
    return Console(fake_model(Replies("Hello!", "Fine.")), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("", []),
        ("story", ["chat"]),
        ("demo", ["chat"]),
        ("./missing", ["chat"]),
        ("weights/missing.gguf", ["chat"]),
        ("owner/name --temperature 0", ["chat"]),
        ("--temperature 0", ["chat"]),
        ("--continue", ["chat"]),
        ("-m story", ["chat"]),
        ("-m story hello", ["complete"]),
        ("hello", ["complete"]),
        ("story hello", ["complete"]),
        ("story --json", ["complete"]),
        ("-p hello", ["complete"]),
        ("-", ["complete"]),
        ("--file notes.txt", ["complete"]),
    ],
)
def test_the_implied_command(arguments, command):
    words = arguments.split()
    assert implied_command(words, command_line.commands) == [*command, *words]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("chat story", "chat story"),
        ("--help", "--help"),
        ("help", "--help"),
        ("help convert", "convert --help"),
        ("run story", "chat story"),
        ("list", "models"),
        ("ls --available", "models --available"),
    ],
)
def test_habits_of_other_programs(arguments, meant):
    assert implied_command(arguments.split(), command_line.commands) == meant.split()


def test_a_misspelt_command_is_no_question():
    with pytest.raises(click.UsageError, match="unknown command 'modles': did you mean `tinychat models`"):
        implied_command(["modles"], command_line.commands)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("bnch story", "bench"),
        ("bnch smollm2-135m", "bench"),
        ("benhc", "bench"),
        ("shwo story", "show"),
        ("convrt a b", "convert"),
        ("batsh in.jsonl", "batch"),
        ("modles --available", "models"),
    ],
)
def test_a_misspelt_command_with_arguments_is_no_question_either(console, line, command):
    code, out, err = console.run(*line.split())
    assert (code, out, console.loaded) == (2, "", [])
    assert f"did you mean `tinychat {command}`?" in err


@pytest.mark.parametrize(
    "words",
    [
        ["converse about cats"],
        ["bnch story"],
        ["converse", "about", "cats"],
        ["Show", "me", "a", "poem"],
        ["how", "are", "you"],
        ["what", "is", "love"],
        ["what", "story"],
        ["long", "story"],
        ["bunch", "of", "flowers", "please"],
        ["sorry", "to", "ask"],
        ["compare", "a", "b"],
    ],
)
def test_questions_that_begin_with_a_similar_word_are_prompts(console, words):
    assert console.run(*words)[:2] == (0, "Hello!\n")
    asked = " ".join(words).encode()
    assert asked in bytes(i for i in console.model.sequence.ids if i < 256)


@pytest.mark.parametrize(
    "words", [["smollm2-135", "hi"], ["SmolLM2-135M", "why", "is", "it"], ["qwen3", "hi"], ["stroy", "hi"]]
)
def test_a_first_word_that_is_nearly_a_model_is_no_prompt(console, words):
    code, out, err = console.run(*words)
    assert (code, out, console.loaded) == (1, "", [])
    assert f"error: unknown model {words[0]!r}: did you mean '" in err


def test_what_stands_in_front_of_a_prompt_is_counted_in_edits():
    pairs = [("bnch", "bench", 1), ("shwo", "show", 1), ("converse", "convert", 2), ("a", "", 1), ("abc", "abc", 0)]
    assert [edits(first, second) for first, second, _ in pairs] == [count for *_, count in pairs]


def test_an_unknown_flag_without_a_command_leads_to_the_help(console):
    code, _, err = console.run("--nope")
    assert (code, err.startswith("error: unknown flag"), err.endswith("(see 'tinychat --help')\n")) == (2, True, True)


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        ([], None, None),
        (["story"], "story", None),
        (["why is it so?"], None, "why is it so?"),
        (["why"], None, "why"),
        (["story", "why is it so?"], "story", "why is it so?"),
        (["story", "why", "so?"], "story", "why so?"),
        (["missing", "why is it so?"], "missing", "why is it so?"),
        (["why", "is", "it", "so?"], None, "why is it so?"),
        ([""], None, ""),
    ],
)
def test_model_and_prompt(words, model, prompt):
    assert model_and_prompt(words, has_prompt=False) == (model, prompt)


def test_with_a_prompt_of_its_own_a_word_is_the_model():
    assert model_and_prompt(["missing"], has_prompt=True) == ("missing", None)
    for words in (["a question?", "b"], ["a question"]):
        with pytest.raises(click.UsageError, match="given twice"):
            model_and_prompt(words, has_prompt=True)


def test_a_misspelt_model_is_no_prompt():
    with pytest.raises(StoreError, match="unknown model 'stori': did you mean 'story'"):
        model_and_prompt(["stori"], has_prompt=False)


def test_a_question_is_answered(console):
    assert console.run("Why is it so?") == (0, "Hello!\n", "")
    assert console.run("story", "Why is it so?") == (0, "Fine.\n", "")
    assert console.loaded == [(None, LoadSettings()), ("story", LoadSettings())]


def test_a_single_word_that_names_nothing_is_asked_with_a_hint(console):
    assert console.run("complete", "Hi") == (0, "Hello!\n", "no model is named 'Hi': using it as the prompt\n")


@pytest.mark.parametrize("arguments", ["Hi!", "-c Hi", "-r plain Hi", "--file FILE Hi", "-m story Hi", "-c FILE"])
def test_a_single_word_that_can_only_be_a_prompt_is_asked_without(console, arguments, tmp_path):
    Path(os.environ["TINYCHAT_HOME"], "config.toml").write_text("[roles.plain]\ntemperature = 0\n")
    file = tmp_path / "notes"
    file.write_text("Notes.")
    assert console.run("What is it?") == (0, "Hello!\n", "")
    words = [str(file) if word == "FILE" else word for word in arguments.split()]
    assert console.run(*words) == (0, "Fine.\n", "")


@pytest.mark.parametrize("words", [["Hello there"], ["Hello there", "--temperature", "0"]])
def test_a_chat_with_a_prompt_leads_to_a_question(console, words, tmp_path, monkeypatch):
    code, out, err = console.run("chat", *words)
    assert (code, out) == (2, "")
    said = 'error: chat takes no prompt: type it in the chat, or ask one question by tinychat "Hello there" (see'
    assert err.startswith(said)
    # Folders may have such names.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Hello there").mkdir()
    assert "takes no prompt" not in console.run("chat", *words)[2]


def test_what_is_piped_in_comes_before_the_question(console):
    console.run("Explain this.", stdin=b"diff")
    assert b"diff\nExplain this." in bytes(i for i in console.model.sequence.ids if i < 256)


def test_a_model_that_is_named_twice_is_refused(console):
    assert console.run("chat", "-m", "a", "b")[0] == 2
    assert console.run("chat", "-m", "story", stdin=b"hi\n") == (0, "Hello!\n", "")
    assert console.loaded == [("story", LoadSettings())]
