"""Room for a reply in a context that is full, or becomes so while the reply is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinychat.conversation.messages import Message
from tinychat.conversation.overflow import (
    begins_full,
    drop_oldest,
    dropped_notice,
    end_of,
    fills,
    long_replies,
    shortening_notice,
    without_middle,
)
from tinychat.errors import PromptTooLongError
from tinychat.generate.run import Room

if TYPE_CHECKING:
    from tinychat.conversation.state import ChatState
    from tinychat.generate.sequence import Ids


class ReplyRoom:
    """Makes room in the context for one reply, as the policy of its conversation says.

    Parameters
    ----------
    chat : ChatState
        The conversation; its `forgotten` grows with the exchanges that go.
    messages : list of Message
        What is answered.
    begun : sequence of int
        Tokens of the reply that is continued.
    """

    def __init__(self, chat: ChatState, messages: list[Message], begun: Ids) -> None:
        self._chat = chat
        self._messages = messages
        self._begun = begun

    def fit(self, ids: Ids) -> Room:
        """Return a prompt, without the oldest exchanges if it leaves too little room for a reply.

        Raises
        ------
        PromptTooLongError
            If the last exchange alone is too long.
        """
        chat, size = self._chat, self._chat.model.context_size
        if chat.overflow == "stop" or not begins_full(len(ids), size):
            return Room(list(ids))
        if chat.overflow == "drop":
            self._begun = end_of(self._begun, size)
            ids = self._prompt(chat.forgotten, self._begun)
        return self._made_shorter(ids, self._begun)

    def make(self, reply_ids: Ids) -> Room | None:
        """Make room in the middle of a reply: see `tinychat.generate.run.MakeRoom`."""
        chat, length = self._chat, len(self._begun) + len(reply_ids)
        if chat.overflow == "stop" or (chat.overflow == "drop" and fills(length, chat.model.context_size)):
            return None
        written = [*self._begun, *reply_ids[:-1]]
        before = self._prompt(chat.forgotten, written)
        ids, removed = self._made_shorter(before, written)
        if len(ids) >= len(before):
            return None
        # The driver puts the reply behind what stands before it.
        return Room(ids[: len(ids) - len(reply_ids[:-1])], removed)

    def _prompt(self, first: int, written: Ids) -> list[int]:
        """Return the ids of the messages from `first` on and of what is `written` of the reply."""
        return [*self._chat.prompt(self._messages[first:]).ids, *written]

    def _made_shorter(self, ids: Ids, written: Ids) -> Room:
        """Return a shorter past for `ids`, which end with the `written` part of a reply, and say what went of it."""
        if self._chat.overflow == "drop":
            ids = self._with_short_replies(ids, written)
            if not begins_full(len(ids), self._chat.model.context_size):
                return Room(list(ids))
        return self._without_oldest(ids, written)

    def _with_short_replies(self, ids: Ids, written: Ids) -> Ids:
        """Shorten long replies, the longest first, until there is room: what the user said is not said again."""
        chat, size, count = self._chat, self._chat.model.context_size, 0
        for message in long_replies(chat.model, self._messages[chat.forgotten :]):
            if not begins_full(len(ids), size):
                break
            message.shortened = without_middle(chat.model, message.content)
            ids, count = self._prompt(chat.forgotten, written), count + 1
        if count:
            chat.on_notice(shortening_notice(count, len(ids), size))
        return ids

    def _without_oldest(self, ids: Ids, written: Ids) -> Room:
        """Leave the oldest exchanges out of `ids`, which end with the `written` part of a reply, and say so."""
        chat, messages = self._chat, self._messages
        size, first = chat.model.context_size, chat.forgotten
        chat.forgotten, shorter = drop_oldest(lambda oldest: self._prompt(oldest, written), first, messages, size)
        if len(shorter) > size:
            # The last exchange alone is too long: nothing that could be forgotten makes room for it.
            raise PromptTooLongError(len(shorter), size, chat.model.trained_length)
        if chat.forgotten > first:
            chat.on_notice(dropped_notice(messages[first : chat.forgotten], len(shorter), size))
            return Room(shorter, len(ids) - len(shorter) if chat.overflow == "shift" else 0)
        return Room(shorter)
