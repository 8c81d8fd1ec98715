"""Completions of a word in a shell, by the variables that its code from `tinychat completion` sets."""

import os
import shutil
import subprocess
import sys

import pytest

from tinychat.configuration import configuration_path
from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore
from tinychat.store.local import store_folder
from tinychat.user_folders import state_folder

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(autouse=True)
def names_to_complete():
    folder = store_folder() / "story"
    folder.mkdir(parents=True)
    (folder / "tinychat.json").write_text("{}")
    SessionStore(state_folder(os.environ) / "sessions").write("talk", SavedSession())
    configuration_path().write_text('[roles.reviewer]\nsystem = "You review."\n[aliases]\nsmall = "story"\n')


@pytest.fixture
def complete(console, monkeypatch):
    """Return a function that completes the last word of a line, as a shell has it done."""

    def ask(line, shell="bash"):
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
        monkeypatch.setenv("_TINYCHAT_COMPLETE", f"{shell}_complete")
        code, out, err = console.run()
        assert (code, err) == (0, "")
        if shell == "zsh":
            return out.splitlines()[1::3]
        return [each.partition(",")[2].partition("\t")[0] for each in out.splitlines()]

    return ask


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tinychat sto", ["story"]),
        ("tinychat smal", ["small"]),
        ("tinychat comp", ["complete", "completion"]),
        ("tinychat chat sto", ["story"]),
        ("tinychat -m sto", ["story"]),
        ("tinychat show sto", ["story"]),
        ("tinychat rm s", ["story"]),
        ("tinychat --resume ", ["talk"]),
        ("tinychat chat --resume t", ["talk"]),
        ("tinychat story --resume t", ["talk"]),
        ("tinychat -r ", ["reviewer"]),
        ("tinychat chat -r r", ["reviewer"]),
        ("tinychat complete --role r", ["reviewer"]),
        ("tinychat hello --jso", ["--json", "--jsonl"]),
        ("tinychat story --resu", ["--resume"]),
        ("tinychat --verb", ["--verbose"]),
        ("tinychat --vers", ["--version"]),
    ],
)
def test_names_and_flags_are_completed(complete, line, words, shell):
    assert complete(line, shell) == words


def test_a_path_is_for_the_shell_to_complete(complete):
    assert complete("tinychat chat ./sto") == ["./sto"]


def test_the_value_of_a_flag_of_questions_is_no_flag_of_a_chat(complete):
    assert complete("tinychat --schema ") == [""]  # a file


def test_an_unknown_shell_is_told(console, monkeypatch):
    monkeypatch.setenv("_TINYCHAT_COMPLETE", "tcsh_complete")
    code, _, err = console.run()
    assert (code, err.startswith("error: invalid $_TINYCHAT_COMPLETE 'tcsh_complete'")) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_itself_completes(tmp_path):
    program = tmp_path / "tinychat"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m tinychat "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(tinychat completion bash)"; COMP_WORDS=(tinychat --resume t); COMP_CWORD=2;'
        ' _tinychat_completion tinychat; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("talk\n", "")
