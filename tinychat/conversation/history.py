"""The messages of a conversation and their history: undo and redo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinychat.conversation.messages import Message, check_conversation, exchanges
from tinychat.errors import SettingError


@dataclass(frozen=True)
class Change:
    """A step of undo or redo: the other state shares the first `shared` messages, and `tail` follows them."""

    shared: int
    tail: tuple[Message, ...] = ()


@dataclass(frozen=True)
class History:
    """Changes that lead to earlier (`past`) and undone (`future`) states, the nearest at the end of each tuple."""

    past: tuple[Change, ...] = ()
    future: tuple[Change, ...] = ()

    @staticmethod
    def of_exchanges(messages: Sequence[Message]) -> History:
        """Return the history of a conversation in which exchange followed exchange."""
        return History(tuple(map(Change, exchanges(messages))))

    def changed(self, messages: Sequence[Message], shared: int) -> History:
        """Return the history after other messages replaced those behind the first `shared`."""
        return History((*self.past, Change(shared, tuple(messages[shared:]))))

    def undone(self, messages: Sequence[Message]) -> tuple[list[Message], History]:
        """Return the state before the last change, and its history."""
        *past, change = self.past
        reverse = Change(change.shared, tuple(messages[change.shared :]))
        return [*messages[: change.shared], *change.tail], History(tuple(past), (*self.future, reverse))

    @property
    def flipped(self) -> History:
        """The history with past and future exchanged: undoing in it is redoing."""
        return History(self.future, self.past)

    def check(self, messages: Sequence[Message]) -> None:
        """Refuse changes that do not lead from `messages`, step by step, to other conversations (`SettingError`)."""
        for changes in (self.past, self.future):
            state = list(messages)
            for change in reversed(changes):
                if not 0 <= change.shared <= len(state):
                    raise SettingError("a change is of more messages than there are")
                state[change.shared :] = change.tail
                check_conversation(state, change.shared)


class Transcript:
    """The messages of a conversation, of which the model no longer sees the `dropped` oldest.

    `messages` begin with a user's; a stopped reply stays, marked as partial. Every change sets a new list, so an
    earlier one still has the conversation as it was. `reply_ids` are the tokens of the last reply, empty where another
    run of the program has written it. `on_change` is called when the messages have changed, and with every delta of a
    reply.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.history: History = History()
        self.dropped: int = 0
        self.reply_ids: list[int] = []
        self.on_change: Callable[[], None] = lambda: None

    def see_all(self) -> None:
        """Let the model see all messages whole again: there may be room for them now."""
        self.dropped = 0
        self.messages = [replace(message, shortened=None) for message in self.messages]

    def add_result(self, result: Message) -> None:
        """Add the result of a call of the last reply, which `undo` takes back with the exchange.

        `FieldError` if it is no result that the conversation waits for.
        """
        messages = [*self.messages, result]
        check_conversation(messages, len(self.messages))
        self.messages, self.history, self.reply_ids = messages, History(self.history.past), []
        self.on_change()

    def message_of(self, turns: int) -> str:
        """Return the message that the last `turns` exchanges begin with; `SettingError` if there are fewer."""
        begins = exchanges(self.messages)
        if not begins:
            raise SettingError("there is no message yet: the conversation is empty")
        if not 1 <= turns <= len(begins):
            raise SettingError(f"there are not {turns} turns: {_offer(len(begins))}")
        return self.messages[begins[-turns]].content

    def undo(self, steps: int = 1) -> str:
        """Take back the last changes: exchanges, replies that were written again, messages that replaced others.

        Returns the first message that is gone, or whose reply is another. `SettingError` if there are not that many.
        """
        if not self.history.past:
            raise SettingError("there is nothing to take back: the conversation is empty")
        before = self.messages
        return _question(before, self._walk(steps, "taken", is_redo=False))

    def redo(self, steps: int = 1) -> str:
        """Make the changes again that `undo` took back, as long as nothing else was said since.

        Returns the first message that is back, or whose reply is another. `SettingError` if there are not that many.
        """
        if not self.history.future:
            raise SettingError("there is nothing to bring back: only what was taken back last, before anything new")
        first = self._walk(steps, "brought", is_redo=True)
        return _question(self.messages, first)

    def _walk(self, steps: int, verb: str, is_redo: bool) -> int:
        """Go `steps` steps through the history; return the index of the first message that has changed."""
        messages, history = self.messages, self.history.flipped if is_redo else self.history
        changes = history.past
        if not 1 <= steps <= len(changes):
            raise SettingError(f"{steps} steps cannot be {verb} back: {_offer(len(changes))}")
        for _ in range(steps):
            messages, history = history.undone(messages)
        self.replace_messages(messages, history.flipped if is_redo else history, self.dropped)
        return min(change.shared for change in changes[-steps:])

    def replace_messages(self, messages: list[Message], history: History | None = None, dropped: int = 0) -> None:
        """Continue from `messages`, of which the model does not see the first `dropped`.

        Their history is exchange after exchange unless given. An exchange is dropped as a whole or not at all.
        `FieldError` if they are not a conversation.
        """
        check_conversation(messages)
        self.messages = messages
        self.history = History.of_exchanges(messages) if history is None else history
        self.dropped = max((end for end in (*exchanges(messages), len(messages)) if end <= dropped), default=0)
        self.reply_ids = []
        self.on_change()


def _offer(count: int) -> str:
    return "there is only one" if count == 1 else f"give a number from 1 to {count}"


def _question(messages: Sequence[Message], index: int) -> str:
    """Return the message that begins the exchange of message `index`; empty if there is none."""
    begins = [begin for begin in exchanges(messages) if begin <= index]
    return messages[begins[-1]].content if begins else ""
