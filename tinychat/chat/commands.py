"""The slash commands of the chat: one table, which /help prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import shorten

from tinychat.chat.desk import Desk
from tinychat.errors import SettingError


@dataclass(frozen=True)
class Command:
    """One line of the table.

    Attributes
    ----------
    name : str
        What is typed after the slash.
    argument : str
        Name of the argument for the help; empty if there is none.
    help : str
        What it does, sentence case, no full stop.
    run : callable
        Called with the desk and the argument, stripped.
    """

    name: str
    argument: str
    help: str
    run: Callable[[Desk, str], None]

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.argument}".rstrip()


def is_command(line: str) -> bool:
    """Return whether `line` is meant for the chat program; a space before the slash makes it a message."""
    return line.startswith("/")


def run_command(desk: Desk, line: str) -> None:
    """Run the command that `line` names.

    Raises
    ------
    SettingError
        If there is no such command (the message suggests the nearest), or it takes no argument.
    """
    name, _, argument = line[1:].strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise SettingError(_unknown(name))
    if argument and not command.argument:
        raise SettingError(f"/{name} takes no argument: type {command.usage}")
    command.run(desk, argument.strip())


def _unknown(name: str) -> str:
    nearest = get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
    advice = f"did you mean /{nearest[0]}?" if nearest else "/help lists them"
    return f"there is no command /{name}: {advice}"


def _help(desk: Desk, _argument: str) -> None:
    desk.notice("\n".join(_help_lines()))


def _help_lines() -> Iterator[str]:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        yield f"{command.usage:<{width}}  {command.help}"


def _exit(desk: Desk, _argument: str) -> None:
    desk.leave()


def _clear(desk: Desk, _argument: str) -> None:
    desk.chat.clear()
    desk.notice("the conversation is forgotten")


def _regenerate(desk: Desk, _argument: str) -> None:
    desk.regenerate()


def _undo(desk: Desk, _argument: str) -> None:
    message = desk.chat.undo()
    desk.notice(f"taken back: {shorten(message, 60)}")


def _system(desk: Desk, argument: str) -> None:
    if argument:
        desk.chat.system = None if argument == "none" else argument
    desk.notice(f"system prompt: {desk.chat.system or 'none'}")


def _stats(desk: Desk, _argument: str) -> None:
    chat = desk.chat
    used, size = len(chat.model.engine.cached_ids), chat.model.context_size
    desk.notice(f"context: {used} of {size} tokens, messages: {len(chat.messages)}")
    summary = chat.model.summary
    if summary is not None:
        desk.notice(
            f"last reply: prompt {summary.prompt_tokens} tokens ({summary.reused_tokens} reused) "
            f"at {summary.prefill_rate:.0f} tok/s, {summary.new_tokens} new tokens "
            f"at {summary.decode_rate:.1f} tok/s, first token after {summary.first_token_seconds:.2f} s, "
            f"seed {summary.seed}"
        )


_TABLE = (
    Command("help", "", "List the commands", _help),
    Command("exit", "", "Leave; so does Ctrl-D", _exit),
    Command("clear", "", "Forget the conversation, keep the system prompt", _clear),
    Command("regen", "", "Write the last reply again", _regenerate),
    Command("undo", "", "Take back the last message and its reply", _undo),
    Command("system", "TEXT", "Set the system prompt; none removes it, nothing shows it", _system),
    Command("stats", "", "Show context use and the rates of the last reply", _stats),
)
COMMANDS = {command.name: command for command in _TABLE}
