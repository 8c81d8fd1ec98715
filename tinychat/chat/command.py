"""A slash command: its row in the table, and the parsers of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tinychat.chat.loop import ChatLoop
from tinychat.errors import SettingError
from tinychat.json_file import one_line
from tinychat.setting_kinds import whole_number
from tinychat.terminal.line_input import Candidate

Completion = Callable[[ChatLoop, str], Iterable[str | Candidate]]
"""Called with the loop and the argument typed so far; returns whole arguments that may begin with it."""


@dataclass(frozen=True)
class Command:
    """A row of the table of commands."""

    name: str  # without the slash
    argument: str  # its name for the help, in brackets if it is optional; empty if there is none
    help: str  # sentence case, no full stop
    run: Callable[[ChatLoop, str], None]  # called with the loop and the argument, stripped
    complete: Completion = lambda _loop, _argument: ()

    @property
    def usage(self) -> str:
        """The command and the name of its argument."""
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """Whether the argument is required."""
        return bool(self.argument) and not self.argument.startswith("[")


def as_count(text: str, usage: str, default: int = 1) -> int:
    """Parse the N of a command; `default` if it is empty."""
    if not text:
        return default
    number = whole_number(text)
    if number is None or number < 1:
        raise SettingError(f"{one_line(repr(text), 80)} is not a whole number of 1 or more: type {usage}")
    return number


def as_assignments(text: str) -> Mapping[str, str]:
    """Parse ``key=value key=value``."""
    pairs = [word.partition("=") for word in text.split()]
    for key, _, value in pairs:
        if not key or not value:
            raise SettingError(f"{key or value!r} is no assignment: type KEY=VALUE, such as temperature=1.0")
    return {key: value for key, _, value in pairs}
