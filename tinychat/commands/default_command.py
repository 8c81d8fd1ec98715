"""What the bare words of a command line mean: a command, a MODEL, a prompt, or several of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import click

from tinychat.commands.misspellings import near_command, near_name
from tinychat.configuration import read_configuration
from tinychat.errors import StoreError, TinychatError

# What people type who come from other programs.
_HABITS = {"list": "models", "ls": "models"}
# A question without quotes has more words.
_MOST_ARGUMENTS = 2
_IMPLIED = ("chat", "complete")


def implied_command(arguments: Sequence[str], commands: Mapping[str, click.Command]) -> list[str]:
    """Return `arguments` behind the command that is meant where they name none.

    A model alone is chatted with, and so is the usual one where there are only flags of a chat; whatever asks
    something is completed.

    Raises
    ------
    click.UsageError
        If a flag is unknown, or a word looks like a misspelt command.
    """
    first, rest = (arguments[0], [*arguments[1:]]) if arguments else ("", [])
    if first in commands or not arguments or first in ("-h", "--help", "--version"):
        return [*arguments]
    if first in _HABITS:
        return [_HABITS[first], *rest]
    if first == "help":
        return [*rest[:1], "--help"]
    if first == "run":
        return implied_command(rest, commands)
    _refuse_misspelt_command(first, rest, commands)
    chat, complete = commands["chat"], commands["complete"]
    words, flags = _words_and_flags(arguments, (chat, complete))
    if words and words[0] in commands:
        # Flags that stand before a command: click says which.
        return [*arguments]
    asks = bool(flags - _flag_names(chat))
    chats = bool(flags - _flag_names(complete))
    if len(words) == 1 and not asks and not chats and words[0] != "-":
        chats = is_model(words[0])
    return ["chat" if chats or not (words or asks) else "complete", *arguments]


def completed_command(arguments: Sequence[str], commands: Mapping[str, click.Command]) -> list[str]:
    """Return `arguments`, whose last flag may lack its value, behind the command that is meant."""
    try:
        return implied_command(arguments, commands)
    except (click.UsageError, TinychatError):
        chat, complete = ({flag for each in commands[name].params for flag in each.opts} for name in _IMPLIED)
        return ["complete" if (complete - chat) & {*arguments} else "chat", *arguments]


def _refuse_misspelt_command(first: str, rest: Sequence[str], commands: Mapping[str, click.Command]) -> None:
    near = near_command(first, commands)
    if near is None or is_model(first):
        return
    if not rest or is_model(rest[0]) or _could_be_arguments(rest, commands[near]):
        raise click.UsageError(f"there is no command {first!r}: did you mean `tinychat {near}`? With -p it is a prompt")


def _could_be_arguments(words: Sequence[str], command: click.Command) -> bool:
    """Return whether words begin with a flag of a command, or are no more than its arguments, and no text."""
    if words[0].startswith("-"):
        return any(words[0].partition("=")[0] in each.opts for each in command.params)
    places = [each.nargs for each in command.params if each.param_type_name == "argument"]
    most = len(words) if -1 in places else sum(places)
    return len(words) <= min(most, _MOST_ARGUMENTS) and not any(map(_is_text, words))


def _words_and_flags(arguments: Sequence[str], commands: Sequence[click.Command]) -> tuple[list[str], set[str]]:
    """Return the words that are not flags, nor their values, and the names of the flags of `commands`."""
    # What the commands have in common once: click warns of flags that occur twice.
    options = {
        tuple(each.opts): each for command in commands for each in command.params if each.param_type_name == "option"
    }
    both = click.Command("tinychat", params=[*options.values()])
    values, words, _ = both.make_parser(click.Context(both, info_name="tinychat")).parse_args([*arguments])
    return words, set(values)


def _flag_names(command: click.Command) -> set[str]:
    return {each.name for each in command.params if each.param_type_name == "option" and each.name is not None}


def model_and_prompt(words: Sequence[str], *, has_prompt: bool) -> tuple[str | None, str | None]:
    """Return the MODEL and the prompt that words stand for, None for what they leave out.

    A single word is a model if it names one, and else a prompt. Of several, the first is a model if it names one, or
    if what follows is a quoted text.

    Parameters
    ----------
    words : sequence of str
        As the shell has cut them.
    has_prompt : bool
        Whether the prompt is given otherwise, so that words can only be a model.

    Raises
    ------
    click.UsageError
        If there are more words than a model's name, and a prompt is given otherwise.
    StoreError
        If the first word is nearly the name of a model.
    """
    if not words:
        return None, None
    first, rest = words[0], words[1:]
    if has_prompt:
        if rest or _is_text(first):
            raise click.UsageError("the prompt is given twice: as words, and by a flag or stdin; leave one out")
        return first, None
    if not rest:
        if _is_text(first):
            return None, first
        if is_model(first):
            return first, None
    elif is_model(first) or (not _is_text(first) and _is_text(rest[0])):
        return first, " ".join(rest)
    if not _is_text(first):
        _refuse_misspelt_name(first, rest)
    return None, " ".join(words)


def is_model(word: str) -> bool:
    """Return whether `word` names a model, or a path where one should be."""
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.store.names import find

    if _is_text(word):
        return False
    if word in read_configuration().aliases:
        return True
    try:
        find(word)
    except StoreError:
        return word.startswith(("./", "../", "/", "~")) or word.endswith(".gguf") or os.path.exists(word)
    return True


def _is_text(word: str) -> bool:
    return not word or any(map(str.isspace, word))


def _refuse_misspelt_name(word: str, rest: Sequence[str]) -> None:
    from tinychat.store.names import known_names

    if near := near_name(word, [*read_configuration().aliases, *known_names()], stands_alone=len(rest) < 2):
        raise StoreError(f"no model is called {word!r}: did you mean {near!r}? With -p it is a prompt")
