"""The table of slash commands, for /help, completion and dispatch."""

from __future__ import annotations

import re
from difflib import get_close_matches

from tinychat.chat.command import Command
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
    attach_image,
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
from tinychat.chat.command_servers import complete_prompt, prompt
from tinychat.chat.command_sessions import complete_session, delete, fork, load, rename, save, sessions
from tinychat.chat.command_tools import complete_tools, tools
from tinychat.chat.loop import ChatLoop
from tinychat.errors import FieldError, SettingError
from tinychat.terminal.line_input import Candidate

# Names of commands, unlike paths.
_WORD = re.compile(r"[A-Za-z?_-]*")
_SIMILAR = 0.5


def is_command(line: str) -> bool:
    """Return whether `line` is a command: a slash and the name of a command, or a misspelt one.

    The words exit, quit and help are commands, too. Anything else is a message, such as a line that begins with a path,
    with two slashes, or with a space.
    """
    if line.strip().lower() in _BARE_WORDS:
        return True
    if not line.startswith("/"):
        return False
    name, _, argument = line[1:].strip().partition(" ")
    is_alone = not argument and "\n" not in name
    return bool(_WORD.fullmatch(name)) and (_command(name) is not None or is_alone or bool(_near(name)))


def as_text(line: str) -> str:
    """Return the message of a line that is no command: a doubled slash becomes one."""
    return line[1:] if line.startswith("//") else line


def run_command(loop: ChatLoop, line: str) -> None:
    """Run the command that `line` names."""
    name, _, argument = line.strip().removeprefix("/").partition(" ")
    command = _command(name)
    if command is None:
        raise SettingError(_unknown_problem(name))
    if argument and not command.argument:
        raise SettingError(f"/{name} takes no argument: type {command.usage}")
    if command.needs_argument and not argument.strip():
        raise SettingError(f"/{name} needs an argument: type {command.usage}")
    try:
        command.run(loop, argument.strip())
    except FieldError as error:
        # In the chat a setting has no flag, which the command line would name.
        raise SettingError(str(error)) from error


def complete_command(loop: ChatLoop, line: str) -> list[Candidate]:
    """Return the candidates for the last word of `line`, which begins with a slash."""
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
    return get_close_matches(name, [*COMMANDS, *OTHER_NAMES], n=1, cutoff=_SIMILAR)


def _unknown_problem(name: str) -> str:
    nearest, elsewhere = _near(name), _ELSEWHERE.get(name.lower())
    if nearest and not elsewhere:
        return f"unknown command /{name}: did you mean /{nearest[0]}? For a message, type //{name}"
    return f"unknown command /{name}: {elsewhere or '/help lists the commands'}; for a message, type //{name}"


def _help(loop: ChatLoop, _argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    loop.notice("\n".join(f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()))


def _exit(loop: ChatLoop, _argument: str) -> None:
    loop.is_leaving = True


_TABLE = (
    Command("help", "", "List the commands, as help and /?", _help),
    Command("exit", "", "Leave, as /bye, /quit, exit, quit and Ctrl-D", _exit),
    Command("regen", "", "Write the last reply again", regenerate),
    Command(
        "retry",
        "[KEY=VALUE]",
        "Write it again with other sampling, by default hotter",
        retry,
        complete_retry,
    ),
    Command("continue", "", "Continue a reply that was stopped or cut", go_on),
    Command("undo", "[N]", "Undo the last N turns, new replies or edits", undo),
    Command("redo", "[N]", "Redo what /undo undid", redo),
    Command("edit", "[N]", "Edit the message of N turns ago; once sent, it replaces them", edit),
    Command("compact", "[N]", "Replace all but the last N turns by a summary of the model", compact),
    Command("clear", "", "Begin a new conversation, as /new; the system prompt stays", clear),
    Command("system", "[TEXT]", "Set the system prompt; none removes it; alone, show it", system),
    Command("set", "KEY VALUE", "Change a setting, such as temperature", set_value, complete_set),
    Command("show", "", "Show the model, system prompt, settings and attachments", show),
    Command("multiline", "", "Let Enter begin a new line, or send again", multiline),
    Command(
        "file", "[PATH]", "Attach files, patterns, folders; alone, list the attachments", attach_file, complete_path
    ),
    Command("image", "[PATH]", "Attach images, for a model that sees", attach_image, complete_path),
    Command("run", "COMMAND", "Run a shell command once confirmed, and attach its output", run, complete_run),
    Command("tools", "[on NAME]", "List the tools with their tokens; on NAME, off NAME, last", tools, complete_tools),
    Command("prompt", "[NAME]", "Bring SERVER:NAME of an MCP server into the line", prompt, complete_prompt),
    Command("paste", "", "Attach the clipboard's text to the next message", paste),
    Command("detach", "[NAME]", "Remove an attachment, or all of them", detach, complete_attachment),
    Command("copy", "", "Copy the last reply to the clipboard", copy),
    Command("export", "FILE [-f]", "Write the conversation as .md or .json; -f overwrites", export, complete_path),
    Command("save", "[NAME]", "Save as NAME; conversations are also saved automatically", save),
    Command("load", "NAME", "Continue a saved conversation", load, complete_session),
    Command("sessions", "[WORD]", "List the saved conversations, or those that contain WORD", sessions),
    Command("rename", "NAME", "Rename this conversation; with OLD NEW, another one", rename, complete_session),
    Command("delete", "NAME", "Delete a saved conversation", delete, complete_session),
    Command("fork", "", "Continue in a copy of the conversation", fork),
    Command("model", "[NAME]", "Switch to another model; alone, list those on this machine", model, complete_model),
    Command("role", "[NAME]", "Switch to a role of config.toml, or none; alone, list them", role, complete_role),
    Command("stats", "", "Show context use and the rates of the last reply", stats),
    Command("context", "", "Show the contents of the context", context),
    Command("tokens", "TEXT", "Show the tokens of a text", tokens),
    Command("why", "[N]", "Show the most likely tokens for the last N tokens", why),
)
COMMANDS = {command.name: command for command in _TABLE}
# Names in other programs.
OTHER_NAMES = {"?": "help", "bye": "exit", "quit": "exit", "new": "clear"}
_BARE_WORDS = ("exit", "quit", "help")
# Commands of other programs that correspond to several of ours.
_ELSEWHERE = {
    "list": "/sessions lists saved conversations, /file attachments, and `tinychat models` models",
    "history": "/context shows this conversation, /sessions lists saved ones, and Ctrl-R searches the input",
}
