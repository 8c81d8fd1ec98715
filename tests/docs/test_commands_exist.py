"""Subcommands, options and scripts that the pages name exist, marked blocks included; the README is short."""

import functools
import os
import re
import subprocess
import sys

import click
import pytest
from documents import AFTER_STEPS, MARKERS, REPO, blocks_of, commands_in, inline_code_of, markers_of, pages

from tinychat.cli import command_line
from tinychat.commands.default_command import implied_command
from tinychat.configuration import parse_configuration

PAGES = pages()
BLOCKS = [block for page, text in PAGES.items() for block in blocks_of(page, text)]
SHELL = [block for block in BLOCKS if block.language == "sh"]
INLINE = [(page, code) for page, text in PAGES.items() for code in inline_code_of(text)]


def check(words):
    """Refuse a command whose subcommand, options or script do not exist."""
    first, *arguments = words
    if first == "scripts/chat":
        first, arguments = "tinychat", ["chat", *arguments]
    if first.startswith("scripts/"):
        assert os.access(REPO / first, os.X_OK), f"{first} is not executable"
    elif first == "tinychat" and arguments not in (["--help"], ["--version"]):
        name, *others = implied_command(arguments, command_line.commands) or ["chat"]
        # Click keeps the names of --help of the first context: as the program has them.
        program = click.Context(command_line, info_name="tinychat", **command_line.context_settings)
        command_line.commands[name].make_context(name, others, parent=program).close()
    elif first != "tinychat" and not arguments[0].startswith("-"):
        script, *others = arguments
        assert (REPO / script).is_file(), f"{script} does not exist"
        # A script without flags is not asked: it might take no notice of --help, and begin its work.
        flags = {word for word in others if word.startswith("--")}
        unknown = flags - help_of(script) if flags else set()
        assert not unknown, f"{script} has no {min(unknown)}"


@functools.cache
def help_of(script):
    command = [sys.executable, script, "--help"]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return {*re.findall(r"--[\w-]+", result.stdout)}


@pytest.mark.parametrize("block", [block for block in SHELL if block.marker != AFTER_STEPS], ids=str)
def test_commands_exist(block):
    for words in commands_in(block.text):
        check(words)


@pytest.mark.parametrize(("page", "code"), INLINE)
def test_commands_within_sentences_exist(page, code):
    for words in commands_in(code):
        if words[1:] and words[1] in command_line.commands and not words[2:]:
            continue  # the name of a command, whose arguments matter as little as those of "ls"
        check(words)


@pytest.mark.parametrize("page", PAGES)
def test_markers_have_known_reasons_and_a_block_behind_them(page):
    marked = [block.marker for block in blocks_of(page, PAGES[page]) if block.marker]
    assert marked == markers_of(PAGES[page])
    assert {*marked} <= {*MARKERS}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_configurations_are_read(block, tmp_path):
    found = parse_configuration(block.text.encode(), tmp_path / "config.toml")
    assert (found.model and found.roles and found.templates) or found.servers


@pytest.mark.parametrize(
    "wrong",
    [
        "tinychat chat MODEL --no-such-flag",
        "tinychat bench --random no-such-shape",
        "echo hi | tinychat complete --temperature hot",
        "scripts/no-such-script",
        "scripts/chat --temperatur 0",
        ".venv/bin/python scripts/compare_many.py random-1.1b --rums 6",
        ".venv/bin/python scripts/no_such_script.py",
        "tinychat pull",
    ],
)
def test_wrong_commands_are_found(wrong):
    with pytest.raises((click.UsageError, AssertionError)):
        for words in commands_in(wrong):
            check(words)


def test_blocks_markers_and_commands_are_found():
    commands = "A=1 tinychat a 'b c' | tee x   # d\ncat <<'END'\ntinychat no\nEND\n"
    text = f"<!-- takes long -->\n```sh\n{commands}```\nSee `tinychat\nb`.\n"
    (block,) = blocks_of("page.md", text)
    assert (block.marker, block.language, str(block)) == ("takes long", "sh", "page.md:2")
    assert commands_in(block.text) == [["tinychat", "a", "b c"]]
    assert (markers_of(text), inline_code_of(text)) == (["takes long"], ["tinychat b"])


def test_the_readme_shows_installation_chat_and_tests_first():
    first_screen = "\n".join(PAGES["README.md"].splitlines()[:25])
    assert all(command in first_screen for command in ("scripts/chat", "scripts/test", "pip install"))


@pytest.mark.parametrize("page", PAGES)
def test_the_environment_of_the_clone_stays_editable(page):
    # A copy would answer there, whatever is edited or pulled afterwards.
    assert not re.search(r"\.venv/bin/\S+( -m pip)? install ['\"]?\.", PAGES[page])


def test_the_readme_is_short():
    assert len(PAGES["README.md"].split()) < 3000
