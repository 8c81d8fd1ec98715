"""The messages of a conversation, and what they were before each change: undo and redo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinychat.conversation.messages import Message, check_conversation, exchanges
from tinychat.errors import SettingError


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
    def of_exchanges(messages: Sequence[Message]) -> History:
        """Return the history of a conversation in which exchange followed exchange."""
        return History(tuple(map(Change, exchanges(messages))))

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

    def check(self, messages: Sequence[Message]) -> None:
        """Refuse changes that do not lead from `messages`, step by step, to other conversations.

        Raises
        ------
        SettingError
            If one does not.
        """
        for changes in (self.past, self.future):
            state = list(messages)
            for change in reversed(changes):
                if not 0 <= change.kept <= len(state):
                    raise SettingError("a change is of more messages than there are")
                state[change.kept :] = change.tail
                check_conversation(state, change.kept)


class Transcript:
    """The messages of a conversation, of which a model may no longer see the oldest.

    Attributes
    ----------
    messages : list of Message
        A user message first; a stopped reply stays, marked as partial. Every change puts a new list here, so an
        earlier one still shows the conversation as it was.
    history : History
        What the conversation was before each change: see `undo` and `redo`.
    forgotten : int
        How many of the oldest messages the model no longer sees.
    reply_ids : list of int
        Tokens of the last reply; empty where another run of the program has written it.
    on_change : callable
        Called when the messages have changed, and with every delta of a reply.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.history: History = History()
        self.forgotten: int = 0
        self.reply_ids: list[int] = []
        self.on_change: Callable[[], None] = lambda: None

    def see_all(self) -> None:
        """Let the model see all messages whole again: there may be room for them now."""
        self.forgotten = 0
        self.messages = [replace(message, shortened=None) for message in self.messages]

    def message_of(self, turns: int) -> str:
        """Return the message that the last `turns` exchanges begin with.

        Raises
        ------
        SettingError
            If there are not that many.
        """
        begins = exchanges(self.messages)
        if not begins:
            raise SettingError("there is no message yet: the conversation is empty")
        if not 1 <= turns <= len(begins):
            raise SettingError(f"there are not {turns} turns: {_offer(len(begins))}")
        return self.messages[begins[-turns]].content

    def undo(self, steps: int = 1) -> str:
        """Take back the last changes: exchanges, replies that were written again, messages that replaced others.

        Returns
        -------
        str
            The first message that is gone, or whose reply is another.

        Raises
        ------
        SettingError
            If there are not that many to take back.
        """
        if not self.history.past:
            raise SettingError("there is nothing to take back: the conversation is empty")
        before = self.messages
        first = self._walk(self.history.past, steps, History.undone, "taken")
        return _question(before, first)

    def redo(self, steps: int = 1) -> str:
        """Make the changes again that `undo` took back, as long as nothing else was said since.

        Returns
        -------
        str
            The first message that is back, or whose reply is another.

        Raises
        ------
        SettingError
            If there are not that many.
        """
        if not self.history.future:
            raise SettingError("there is nothing to bring back: only what was taken back last, before anything new")
        first = self._walk(self.history.future, steps, History.redone, "brought")
        return _question(self.messages, first)

    def _walk(
        self,
        changes: Sequence[Change],
        steps: int,
        step: Callable[[History, list[Message]], tuple[list[Message], History]],
        verb: str,
    ) -> int:
        """Go `steps` steps through the history; return the index of the first message that has changed."""
        if not 1 <= steps <= len(changes):
            raise SettingError(f"{steps} steps cannot be {verb} back: {_offer(len(changes))}")
        first = min(change.kept for change in changes[-steps:])
        messages, history = self.messages, self.history
        for _ in range(steps):
            messages, history = step(history, messages)
        self.replace_messages(messages, history, self.forgotten)
        return first

    def replace_messages(self, messages: list[Message], history: History | None = None, forgotten: int = 0) -> None:
        """Continue from `messages`, of which the model does not see the first `forgotten`.

        Their history is exchange after exchange unless given. An exchange is forgotten as a whole or not at all.

        Raises
        ------
        FieldError
            If they do not begin with a user message, or calls and results do not belong together.
        """
        check_conversation(messages)
        self.messages = messages
        self.history = History.of_exchanges(messages) if history is None else history
        self.forgotten = max((end for end in (*exchanges(messages), len(messages)) if end <= forgotten), default=0)
        self.reply_ids = []
        self.on_change()


def _offer(count: int) -> str:
    return "there is only one" if count == 1 else f"give a number from 1 to {count}"


def _question(messages: Sequence[Message], index: int) -> str:
    """Return the message that begins the exchange of message `index`; empty if there is none."""
    begins = [begin for begin in exchanges(messages) if begin <= index]
    return messages[begins[-1]].content if begins else ""


def _apply(messages: Sequence[Message], change: Change) -> tuple[list[Message], Change]:
    """Return the other side of `change`, and the change that leads back."""
    return [*messages[: change.kept], *change.tail], Change(change.kept, tuple(messages[change.kept :]))
