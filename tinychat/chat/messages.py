"""The messages of a conversation, texts that go with them, and what the conversation was before each change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Message:
    """One message of the conversation.

    Attributes
    ----------
    role : str
        "user" or "assistant".
    content : str
        The text.
    partial : bool
        True while a reply is being written, and for good when it was stopped or cut.
    """

    role: str
    content: str
    partial: bool = False


@dataclass(frozen=True)
class Attachment:
    """A text that goes with the next message: a file, or what was copied elsewhere.

    Attributes
    ----------
    name : str
        What it is called before its text.
    text : str
        The text.
    path : str
        The whole path of the file; empty for the clipboard.
    """

    name: str
    text: str
    path: str = ""

    @property
    def content(self) -> str:
        """The text below its name, in a code fence longer than any in the text."""
        longest = max((len(run) for run in re.findall(r"`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{self.name}:\n{fence}\n{self.text.rstrip()}\n{fence}"


@dataclass(frozen=True)
class Draft:
    """A message that the user has not sent yet.

    Attributes
    ----------
    text : str
        What stands in the prompt.
    replaced : int
        Turns at the end whose place it takes once it is sent.
    """

    text: str = ""
    replaced: int = 0


@dataclass(frozen=True)
class Change:
    """One step of undo or redo: the conversation that it leads to, as its difference from the present one.

    Attributes
    ----------
    kept : int
        How many messages both begin with.
    tail : tuple of Message
        What follows them on the other side.
    """

    kept: int
    tail: tuple[Message, ...] = ()


@dataclass(frozen=True)
class History:
    """Changes around the present state of a conversation, the nearest at the end of each tuple.

    Attributes
    ----------
    past : tuple of Change
        Each leads to the state before.
    future : tuple of Change
        Each leads to the state that was taken back.
    """

    past: tuple[Change, ...] = ()
    future: tuple[Change, ...] = ()

    @staticmethod
    def of_turns(messages: Sequence[Message]) -> History:
        """Return the history of a conversation in which turn followed turn."""
        return History(tuple(Change(kept) for kept in range(0, len(messages), 2)))

    def changed(self, messages: Sequence[Message], kept: int) -> History:
        """Return the history after something else took the place of what follows the first `kept` messages."""
        return History((*self.past, Change(kept, tuple(messages[kept:]))))

    def undone(self, messages: Sequence[Message]) -> tuple[list[Message], History]:
        """Return the state before the last change, and its history."""
        *past, change = self.past
        before, back = _apply(messages, change)
        return before, History(tuple(past), (*self.future, back))

    def redone(self, messages: Sequence[Message]) -> tuple[list[Message], History]:
        """Return the state after the change that was taken back last, and its history."""
        *future, change = self.future
        after, back = _apply(messages, change)
        return after, History((*self.past, back), tuple(future))

    def fits(self, messages: Sequence[Message]) -> bool:
        """Return whether every change leads from `messages`, step by step, to a conversation of whole turns."""
        return _leads(messages, self.past) and _leads(messages, self.future)


def _apply(messages: Sequence[Message], change: Change) -> tuple[list[Message], Change]:
    """Return the other side of `change`, and the change that leads back."""
    return [*messages[: change.kept], *change.tail], Change(change.kept, tuple(messages[change.kept :]))


def _leads(messages: Sequence[Message], changes: Sequence[Change]) -> bool:
    length = len(messages)
    for change in reversed(changes):
        if not 0 <= change.kept <= length:
            return False
        length = change.kept + len(change.tail)
        roles = [message.role for message in change.tail]
        if length % 2 or roles != [("user", "assistant")[place % 2] for place in range(change.kept, length)]:
            return False
    return True
