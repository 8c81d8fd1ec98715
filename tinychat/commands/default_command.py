"""The default command: which of chat and complete a command line without a command means, and its MODEL and prompt."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from tinychat.commands.misspellings import near_command, near_name
from tinychat.configuration import read_configuration
from tinychat.errors import StoreError, TinychatError

# Names of commands in other programs.
_ALIASES = {"list": "models", "ls": "models"}
# A question without quotes has more words.
_MAX_ARGUMENTS = 2


def implied_command(arguments: Sequence[str], commands: Mapping[str, click.Command]) -> list[str]:
    """Put the default command before `arguments` that name none: complete if they hold a prompt, else chat."""
    first, rest = (arguments[0], [*arguments[1:]]) if arguments else ("", [])
    if first in commands or not arguments or first in ("-h", "--help", "--version"):
        return [*arguments]
    if first in _ALIASES:
        return [_ALIASES[first], *rest]
    if first == "help":
        return [*rest[:1], "--help"]
    if first == "run":
        return implied_command(rest, commands)
    _refuse_misspelt_command(first, rest, commands)
    chat, complete = commands["chat"], commands["complete"]
    words, flags = _parse(arguments, (chat, complete))
    if words and words[0] in commands:
        # A flag before the command: click's error names it.
        return [*arguments]
    needs_complete = bool(flags - _flag_names(chat))
    needs_chat = bool(flags - _flag_names(complete))
    if len(words) == 1 and words[0] != "-" and not needs_complete and not needs_chat:
        needs_chat = is_model(words[0], or_path="continues" not in flags)
    return ["chat" if needs_chat or not (words or needs_complete) else "complete", *arguments]


def completed_command(arguments: Sequence[str], commands: Mapping[str, click.Command]) -> list[str]:
    """Return the same as `implied_command`, for arguments being typed: the last flag may lack its value."""
    try:
        return implied_command(arguments, commands)
    except (click.UsageError, TinychatError):
        chat, complete = (
            {flag for each in commands[name].params for flag in each.opts} for name in ("chat", "complete")
        )
        return ["complete" if (complete - chat) & {*arguments} else "chat", *arguments]


def _refuse_misspelt_command(first: str, rest: Sequence[str], commands: Mapping[str, click.Command]) -> None:
    near = near_command(first, commands)
    if near is None or is_model(first):
        return
    if not rest or is_model(rest[0]) or _could_be_arguments(rest, commands[near]):
        raise click.UsageError(f"unknown command {first!r}: did you mean `tinychat {near}`? For a prompt, use -p")


def _could_be_arguments(words: Sequence[str], command: click.Command) -> bool:
    """Return whether words begin with a flag of a command, or could be its arguments, without a quoted text."""
    if words[0].startswith("-"):
        return any(words[0].partition("=")[0] in each.opts for each in command.params)
    counts = [each.nargs for each in command.params if each.param_type_name == "argument"]
    most = len(words) if -1 in counts else sum(counts)
    return len(words) <= min(most, _MAX_ARGUMENTS) and not any(map(_is_text, words))


def _parse(arguments: Sequence[str], commands: Sequence[click.Command]) -> tuple[list[str], set[str]]:
    """Return the positional arguments and the names of the flags, of either of `commands`."""
    # Common flags once: click warns of duplicates.
    options = {
        tuple(each.opts): each for command in commands for each in command.params if each.param_type_name == "option"
    }
    both = click.Command("tinychat", params=[*options.values()])
    values, words, _ = both.make_parser(click.Context(both, info_name="tinychat")).parse_args([*arguments])
    return words, set(values)


def _flag_names(command: click.Command) -> set[str]:
    return {each.name for each in command.params if each.param_type_name == "option" and each.name is not None}


def model_and_prompt(
    words: Sequence[str], *, has_prompt: bool, continues: bool = False
) -> tuple[str | None, str | None]:
    """Return the MODEL and the prompt in positional arguments, None for either that is missing.

    A single word is a model if it names one, else a prompt. Of several, the first is a model if it names one, or if a
    quoted text follows. With `has_prompt`, the prompt comes from a flag or stdin, and a word can only be a model. Where
    it `continues` with the model of before, a path of no model is a prompt.
    """
    if not words:
        return None, None
    first, rest = words[0], words[1:]
    if has_prompt:
        if rest or _is_text(first):
            raise click.UsageError("the prompt is given twice, as arguments and by a flag or stdin: leave one out")
        return first, None
    if not rest:
        if _is_text(first):
            return None, first
        if is_model(first, or_path=not continues):
            return first, None
    elif is_model(first) or (not _is_text(first) and _is_text(rest[0])):
        return first, " ".join(rest)
    if not _is_text(first):
        _refuse_misspelt_name(first, rest)
    return None, " ".join(words)


def is_model(word: str, or_path: bool = True) -> bool:
    """Return whether `word` is the name of a model, or looks like a path."""
    from tinychat.store.names import find

    if _is_text(word):
        return False
    if word in read_configuration().aliases:
        return True
    try:
        find(word)
    except StoreError:
        is_path = word.startswith(("./", "../", "/", "~")) or word.endswith(".gguf") or os.path.exists(word)
        return or_path and is_path
    return True


def _is_text(word: str) -> bool:
    return not word or any(map(str.isspace, word))


def _refuse_misspelt_name(word: str, rest: Sequence[str]) -> None:
    from tinychat.store.names import known_names

    if near := near_name(word, [*read_configuration().aliases, *known_names()], stands_alone=len(rest) < 2):
        raise StoreError(f"unknown model {word!r}: did you mean {near!r}? For a prompt, use -p")
