"""Room for a reply in a context that is full, before the reply or in the middle of it."""

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
    """Makes room in the context for one reply, by the overflow policy of its conversation.

    `messages` are answered; `begun` are the tokens of a reply that is continued. `chat.dropped` grows.
    """

    def __init__(self, chat: ChatState, messages: list[Message], begun: Ids) -> None:
        self._chat = chat
        self._messages = messages
        self._begun = begun

    def fit(self, ids: Ids) -> Room:
        """Return a prompt, without the oldest exchanges if it leaves too little room for a reply.

        `PromptTooLongError` if the last exchange alone is too long.
        """
        chat, size = self._chat, self._chat.model.context_size
        if chat.overflow == "stop" or not begins_full(len(ids), size):
            return Room(list(ids))
        if chat.overflow == "drop":
            self._begun = end_of(self._begun, size)
            ids = self._prompt(chat.dropped, self._begun)
        return self._made_shorter(ids, self._begun)

    def make(self, reply_ids: Ids) -> Room | None:
        """Make room in the middle of a reply: see `tinychat.generate.run.MakeRoom`."""
        chat, length = self._chat, len(self._begun) + len(reply_ids)
        if chat.overflow == "stop" or (chat.overflow == "drop" and fills(length, chat.model.context_size)):
            return None
        written = [*self._begun, *reply_ids[:-1]]
        before = self._prompt(chat.dropped, written)
        ids, removed = self._made_shorter(before, written)
        if len(ids) >= len(before):
            return None
        # The driver puts the reply behind the ids before it.
        return Room(ids[: len(ids) - len(reply_ids[:-1])], removed)

    def _prompt(self, first: int, written: Ids) -> list[int]:
        """Return the ids of the messages from `first` on and of the `written` part of the reply."""
        return [*self._chat.prompt(self._messages[first:]).ids, *written]

    def _made_shorter(self, ids: Ids, written: Ids) -> Room:
        """Return a shorter past for `ids`, which end with the `written` part of a reply, and notify."""
        chat, messages = self._chat, self._messages
        size, first = chat.model.context_size, chat.dropped
        if chat.overflow == "drop":
            ids = self._with_short_replies(ids, written)
            if not begins_full(len(ids), size):
                return Room(list(ids))
        chat.dropped, shorter = drop_oldest(lambda oldest: self._prompt(oldest, written), first, messages, size)
        if len(shorter) > size:
            # The last exchange alone is too long.
            raise PromptTooLongError(len(shorter), size, chat.model.trained_length)
        if chat.dropped == first:
            return Room(shorter)
        chat.on_notice(dropped_notice(messages[first : chat.dropped], len(shorter), size))
        return Room(shorter, len(ids) - len(shorter) if chat.overflow == "shift" else 0)

    def _with_short_replies(self, ids: Ids, written: Ids) -> Ids:
        """Shorten long replies, the longest first, until there is room: the user's words stay."""
        chat, size, count = self._chat, self._chat.model.context_size, 0
        for message in long_replies(chat.model, self._messages[chat.dropped :]):
            if not begins_full(len(ids), size):
                break
            message.shortened = without_middle(chat.model, message.content)
            ids, count = self._prompt(chat.dropped, written), count + 1
        if count:
            chat.on_notice(shortening_notice(count, len(ids), size))
        return ids
