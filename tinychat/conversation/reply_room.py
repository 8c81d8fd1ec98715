"""Room for a reply in a context that is full, or becomes so while the reply is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinychat.conversation.messages import Message
from tinychat.conversation.overflow import begins_full, forget_oldest, forgetting_notice
from tinychat.errors import PromptTooLongError
from tinychat.generate.run import Room

if TYPE_CHECKING:
    from tinychat.conversation.conversation import Chat
    from tinychat.generate.sequence import Ids


class ReplyRoom:
    """Makes room in the context for one reply, as the policy of its conversation says.

    Parameters
    ----------
    chat : Chat
        The conversation; its `forgotten` grows with the exchanges that go.
    messages : list of Message
        What is answered.
    begun : sequence of int
        Tokens of the reply that is continued.
    """

    def __init__(self, chat: Chat, messages: list[Message], begun: Ids) -> None:
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
        if self._chat.overflow != "stop" and begins_full(len(ids), self._chat.model.context_size):
            return self._without_oldest(ids, self._begun)
        return Room(list(ids))

    def make(self, reply_ids: Ids) -> Room | None:
        """Make room in the middle of a reply: see `tinychat.generate.run.MakeRoom`."""
        chat = self._chat
        if chat.overflow == "stop":
            return None
        written, forgotten = [*self._begun, *reply_ids[:-1]], chat.forgotten
        ids, removed = self._without_oldest(self._prompt(forgotten, written), written)
        if chat.forgotten == forgotten:
            return None
        # The driver puts the reply behind what stands before it.
        return Room(ids[: len(ids) - len(reply_ids[:-1])], removed)

    def _prompt(self, first: int, written: Ids) -> list[int]:
        """Return the ids of the messages from `first` on and of what is `written` of the reply."""
        return [*self._chat.prompt(self._messages[first:]).ids, *written]

    def _without_oldest(self, ids: Ids, written: Ids) -> Room:
        """Leave the oldest exchanges out of `ids`, which end with the `written` part of a reply, and say so."""
        chat, messages = self._chat, self._messages
        size, first = chat.model.context_size, chat.forgotten
        chat.forgotten, shorter = forget_oldest(lambda oldest: self._prompt(oldest, written), first, messages, size)
        if len(shorter) > size:
            # The last exchange alone is too long: nothing that could be forgotten makes room for it.
            raise PromptTooLongError(len(shorter), size, chat.model.trained_length)
        if chat.forgotten > first:
            chat.on_notice(forgetting_notice(messages[first : chat.forgotten], len(shorter), size))
            return Room(shorter, len(ids) - len(shorter) if chat.overflow == "shift" else 0)
        return Room(shorter)
