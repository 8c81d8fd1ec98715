"""What surrounds a conversation: where it is saved, and how another model is opened."""

from __future__ import annotations

from collections.abc import Callable

from tinychat.chat.session import Chat
from tinychat.errors import SettingError
from tinychat.generate.model import Model


def _no_other_model(name: str) -> Model:
    raise SettingError(f"the model {name} cannot be opened from here: leave, and start the chat with it")


class Workspace:
    """A conversation and what its commands reach beyond it.

    Parameters
    ----------
    chat : Chat
        The conversation.
    open_model : callable, optional
        Loads the model of a name.
    """

    def __init__(self, chat: Chat, open_model: Callable[[str], Model] = _no_other_model) -> None:
        self.chat = chat
        self.open_model = open_model
