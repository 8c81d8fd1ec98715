"""What a slash command is: its line in the table, how its argument is read, and what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tinychat.chat.draft import Draft
from tinychat.chat.workspace import Workspace
from tinychat.conversation.conversation import Chat
from tinychat.errors import SettingError
from tinychat.terminal.line_input import Candidate


class ChatLoop(Protocol):
    """What a command may use: the conversation, its file and model, and the user.

    Attributes
    ----------
    show_thinking : bool
        Whether the think section of a reply is drawn, or folded into a line.
    show_stats : bool or None
        Whether what each reply took is shown; None where somebody watches.
    """

    chat: Chat
    workspace: Workspace
    show_thinking: bool
    show_stats: bool | None

    def notice(self, text: str) -> None:
        """Show a notice to the user."""
        ...

    def progress(self, title: str) -> Callable[[int, int], None]:
        """Return a callback of (done, total) that shows how far some work is, until the next notice."""
        ...

    def regenerate(self) -> None:
        """Write the last reply again."""
        ...

    def go_on(self) -> None:
        """Go on with a reply that was stopped or cut."""
        ...

    def compact(self, turns: int) -> str:
        """Summarise all but the last turns, and return the summary; empty if Ctrl-C has stopped it."""
        ...

    def confirm(self, question: str) -> bool:
        """Ask a question, and return whether the answer is yes; a SettingError if nobody is there to answer."""
        ...

    def recall(self) -> None:
        """Show the last message and its reply, as what was before."""
        ...

    def leave(self) -> None:
        """End the loop after this command."""
        ...

    def prefill(self, draft: Draft) -> None:
        """Begin the next prompt with a message that the user may edit, send or discard."""
        ...

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to take `text` into its clipboard; return whether it could be asked."""
        ...

    def toggle_multiline(self) -> bool:
        """Let Enter begin a new line instead of sending, or the other way round; return whether it does."""
        ...


Completion = Callable[[ChatLoop, str], Iterable[str | Candidate]]
"""Called with the loop and the argument typed so far; gives whole arguments that begin so, described or alone."""


def nothing(_loop: ChatLoop, _argument: str) -> Iterable[str]:
    """Complete nothing."""
    return ()


@dataclass(frozen=True)
class Command:
    """One line of the table.

    Attributes
    ----------
    name : str
        What is typed after the slash.
    argument : str
        Name of the argument for the help, in brackets if it may be left out; empty if there is none.
    help : str
        What it does, sentence case, no full stop.
    run : callable
        Called with the loop and the argument, stripped.
    complete : callable
        See `Completion`.
    """

    name: str
    argument: str
    help: str
    run: Callable[[ChatLoop, str], None]
    complete: Completion = nothing

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """Whether it cannot do without its argument."""
        return bool(self.argument) and not self.argument.startswith("[")


def as_count(text: str, usage: str, what: str = "turns", default: int = 1) -> int:
    """Return the number of `what` that `text` is, `default` where it is empty.

    Raises
    ------
    SettingError
        If it is not a whole number above zero.
    """
    # isdecimal alone also accepts digits of other scripts, which int reads too.
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"{text!r} is not a number of {what}: type {usage}, with N from 1")
    return int(text)


def as_assignments(text: str) -> Mapping[str, str]:
    """Return the values of ``key=value key=value`` by key.

    Raises
    ------
    SettingError
        If a word has no key or no value.
    """
    pairs = [word.partition("=") for word in text.split()]
    for key, _, value in pairs:
        if not key or not value:
            raise SettingError(f"{key or value!r} sets nothing: type KEY=VALUE, such as temperature=1.0")
    return {key: value for key, _, value in pairs}
