"""The slash commands of the chat: one table, which /help prints and the Tab key completes from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from tinychat.chat.command import ChatLoop, Command
from tinychat.chat.command_conversation import (
    clear,
    compact,
    complete_retry,
    complete_set,
    edit,
    go_on,
    multiline,
    redo,
    regenerate,
    retry,
    set_value,
    show,
    system,
    undo,
)
from tinychat.chat.command_files import (
    attach_file,
    complete_attachment,
    complete_path,
    copy,
    detach,
    export,
    paste,
)
from tinychat.chat.command_insight import context, stats, tokens, why
from tinychat.chat.command_model import complete_model, complete_role, model, role
from tinychat.chat.command_run import complete_run, run
from tinychat.chat.command_sessions import complete_session, delete, fork, load, rename, save, sessions
from tinychat.errors import FieldError, SettingError
from tinychat.terminal.line_input import Candidate

# What a command could be called, unlike a path.
_WORD = re.compile(r"[A-Za-z?_-]*")
_CLOSE = 0.5


def is_command(line: str) -> bool:
    """Return whether `line` is meant for the chat program.

    That is a command's name behind a slash, or what may be a misspelt one; anything else is a message, such as one
    that begins with a path. The words that leave or explain other programs are commands without a slash. A second
    slash, or a space before the first, makes any line a message.
    """
    if line.strip().lower() in _BARE_WORDS:
        return True
    if not line.startswith("/"):
        return False
    name, _, argument = line[1:].strip().partition(" ")
    is_alone = not argument and "\n" not in name
    return bool(_WORD.fullmatch(name)) and (_command(name) is not None or is_alone or bool(_near(name)))


def as_text(line: str) -> str:
    """Return the message that a line is, if it is not a command: its doubled slash stands for one."""
    return line[1:] if line.startswith("//") else line


def run_command(loop: ChatLoop, line: str) -> None:
    """Run the command that `line` names.

    Raises
    ------
    SettingError
        If there is no such command (the message suggests the nearest), or its argument is missing or too much.
    TinychatError
        If the command fails.
    """
    name, _, argument = line.strip().removeprefix("/").partition(" ")
    command = _command(name)
    if command is None:
        raise SettingError(_unknown(name))
    if argument and not command.argument:
        raise SettingError(f"/{name} takes no argument: type {command.usage}")
    if command.needs_argument and not argument.strip():
        raise SettingError(f"/{name} needs an argument: type {command.usage}")
    try:
        command.run(loop, argument.strip())
    except FieldError as error:
        # The chat names a setting by its field, also from a pipe: the command line must not make a flag of it.
        raise SettingError(str(error)) from error


def complete_command(loop: ChatLoop, line: str) -> list[Candidate]:
    """Return what may stand for the last word of `line`, which begins with a slash."""
    name, space, argument = line[1:].partition(" ")
    if not space:
        return [Candidate(f"/{key}", command.help) for key, command in COMMANDS.items() if key.startswith(name)]
    command = _command(name)
    if command is None:
        return []
    last_word = argument.rfind(" ") + 1
    found = (Candidate(each) if isinstance(each, str) else each for each in command.complete(loop, argument))
    return [Candidate(text[last_word:], said) for text, said in found if text.startswith(argument)]


def _command(name: str) -> Command | None:
    name = name.lower()
    return COMMANDS.get(OTHER_NAMES.get(name, name))


def _near(name: str) -> list[str]:
    return get_close_matches(name, [*COMMANDS, *OTHER_NAMES], n=1, cutoff=_CLOSE)


def _unknown(name: str) -> str:
    nearest = _near(name)
    advice = _ELSEWHERE.get(name.lower()) or (f"did you mean /{nearest[0]}?" if nearest else "/help lists them")
    return f"there is no command /{name}: {advice}; //{name} is a message"


def _help(loop: ChatLoop, _argument: str) -> None:
    loop.notice("\n".join(_help_lines()))


def _help_lines() -> Iterator[str]:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        yield f"{command.usage:<{width}}  {command.help}"


def _exit(loop: ChatLoop, _argument: str) -> None:
    loop.leave()


_TABLE = (
    Command("help", "", "List the commands; so do help and /?", _help),
    Command("exit", "", "Leave; so do /bye, /quit, exit, quit and Ctrl-D", _exit),
    Command("regen", "", "Write the last reply again", regenerate),
    Command("retry", "[KEY=VALUE]", "Write it again with other sampling, or just more freely", retry, complete_retry),
    Command("continue", "", "Go on with a reply that was stopped or cut", go_on),
    Command("undo", "[N]", "Take back the last N turns, new replies or edits", undo),
    Command("redo", "[N]", "Bring back what /undo took back", redo),
    Command("edit", "[N]", "Change the message of N turns ago; sent, it replaces them", edit),
    Command("compact", "[N]", "Let the model's summary replace all but the last N turns", compact),
    Command("clear", "", "Begin a new conversation, as /new; the system prompt stays", clear),
    Command("system", "[TEXT]", "Set the system prompt; none removes it, nothing shows it", system),
    Command("set", "KEY VALUE", "Change a setting, such as temperature", set_value, complete_set),
    Command("show", "", "Show the model, system prompt, settings and attachments", show),
    Command("multiline", "", "Let Enter begin a new line, or send again", multiline),
    Command(
        "file", "[PATH]", "Attach files, patterns, folders; alone, list what is attached", attach_file, complete_path
    ),
    Command("run", "COMMAND", "Run a command of the shell once you agree; attach its output", run, complete_run),
    Command("paste", "", "Attach the clipboard's text to the next message", paste),
    Command("detach", "[NAME]", "Take back one attachment, or all of them", detach, complete_attachment),
    Command("copy", "", "Copy the last reply to the clipboard", copy),
    Command("export", "FILE [-f]", "Write the conversation as .md or .json; -f overwrites", export, complete_path),
    Command("save", "[NAME]", "Save now, from now on as NAME; it is saved anyway", save),
    Command("load", "NAME", "Go on with a saved conversation", load, complete_session),
    Command("sessions", "[WORD]", "List the saved conversations, or those with WORD in them", sessions),
    Command("rename", "NAME", "Give this conversation another name, or OLD NEW another one", rename, complete_session),
    Command("delete", "NAME", "Delete a saved conversation", delete, complete_session),
    Command("fork", "", "Go on in a copy, and leave the conversation as it is", fork),
    Command("model", "[NAME]", "Let another model go on; alone, list those to choose from", model, complete_model),
    Command("role", "[NAME]", "Let a role of config.toml go on, or none; alone, list them", role, complete_role),
    Command("stats", "", "Show context use and the rates of the last reply", stats),
    Command("context", "", "Show what fills the context", context),
    Command("tokens", "TEXT", "Show the tokens of a text", tokens),
    Command("why", "[N]", "Show what else the last N tokens could have been", why),
)
COMMANDS = {command.name: command for command in _TABLE}
# What other programs call them.
OTHER_NAMES = {"?": "help", "bye": "exit", "quit": "exit", "new": "clear"}
_BARE_WORDS = ("exit", "quit", "help")
# Commands of other programs that would be several of ours.
_ELSEWHERE = {
    "list": "/sessions lists saved conversations, /file what is attached, and `tinychat models` the models",
    "history": "/context shows this conversation, /sessions lists saved ones, and Ctrl-R searches what was typed",
}
