"""What a slash command may use of the loop around it."""

from __future__ import annotations

from typing import Protocol

from tinychat.chat.message import Draft
from tinychat.chat.session import Chat
from tinychat.chat.workspace import Workspace


class Desk(Protocol):
    """The conversation, what surrounds it, and the person.

    Attributes
    ----------
    show_thinking : bool
        Whether the think section of a reply is drawn, or folded into a line.
    """

    chat: Chat
    workspace: Workspace
    show_thinking: bool

    def notice(self, text: str) -> None:
        """Say something to the person."""
        ...

    def regenerate(self) -> None:
        """Write the last reply again."""
        ...

    def leave(self) -> None:
        """End the loop after this command."""
        ...

    def prefill(self, draft: Draft) -> None:
        """Begin the next prompt with a message that the person may edit, send or give up."""
        ...

    def offer_to_terminal(self, text: str) -> bool:
        """Ask the terminal to take `text` into its clipboard; return whether it could be asked."""
        ...

    def toggle_multiline(self) -> bool:
        """Let Enter begin a new line instead of sending, or the other way round; return whether it does."""
        ...
