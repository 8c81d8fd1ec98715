"""The messages of a conversation."""

from __future__ import annotations

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
