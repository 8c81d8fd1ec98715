"""The state of a conversation that a count of its tokens is of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinychat.conversation.conversation import Chat


class Seen:
    """The view that a model had of a conversation; every change of the messages makes another list."""

    def __init__(self, chat: Chat) -> None:
        self._messages, self._rest = chat.messages, _rest(chat)

    def is_still(self, chat: Chat) -> bool:
        """Return whether the conversation is as it was."""
        return self._messages is chat.messages and self._rest == _rest(chat)


def _rest(chat: Chat) -> tuple[object, ...]:
    return chat.forgotten, chat.system, chat.thinking, id(chat.model)
