"""A one-shot as a conversation: the earlier one that it goes on with, and its place in the log."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tinychat.errors import SessionError
from tinychat.generate.prompt import Prompt
from tinychat.user_folders import state_folder, trusted_folder

if TYPE_CHECKING:
    from tinychat.conversation.messages import Message
    from tinychat.conversation.one_shots import OneShots
    from tinychat.generate.model import Model
    from tinychat.generate.precedence import Preferences, Resolved
    from tinychat.generate.reply import Reply


@dataclass(frozen=True)
class Earlier:
    """A one-shot that another one goes on with; without a name, nothing.

    Attributes
    ----------
    name : str, optional
        In the log.
    revision : int
        What changes when somebody else goes on with it.
    model : str, optional
        The MODEL that answered, None for the usual one.
    flags : mapping
        Settings by name that were asked for then, the system prompt among them.
    messages : list of Message
        All that was said.
    """

    name: str | None = None
    revision: int = 0
    model: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    def under(self, preferences: Preferences) -> Preferences:
        """Return preferences in which the flags of then count as far as none of now says otherwise."""
        return replace(preferences, flags={**self.flags, **preferences.flags})


def log_of_one_shots() -> OneShots:
    """Return the log below the user's state folder.

    Raises
    ------
    SessionError
        If others could change what is there, or this user has no home.
    """
    # Imported here: no reply waits for it.
    from tinychat.conversation.one_shots import OneShots

    try:
        return OneShots(trusted_folder(state_folder(os.environ)))
    except OSError as error:
        raise SessionError(f"there is no log of one-shots: {error.strerror or error}") from None


def last_one_shot() -> Earlier:
    """Return the one-shot that was answered last.

    Raises
    ------
    SessionError
        If there is none, or its file is damaged.
    """
    log = log_of_one_shots()
    name = log.last()
    revision, saved = log.revision(name), log.read(name)
    flags = {**saved.settings, **({"stop": saved.stop} if saved.stop else {})}
    if saved.system is not None:
        flags["system"] = saved.system
    return Earlier(name, revision, saved.model, flags, tuple(saved.messages))


@dataclass(frozen=True)
class Question:
    """A question to a model, and what it goes on with.

    Attributes
    ----------
    earlier : Earlier
        As it was answered.
    text : str
        The prompt.
    model : str, optional
        The MODEL that answers, None for the usual one.
    system : str, optional
        The system prompt.
    found : Resolved
        The settings in use.
    """

    earlier: Earlier
    text: str
    model: str | None
    system: str | None
    found: Resolved

    def prompt(self, loaded: Model, as_chat: bool | None) -> Prompt:
        """Return the prompt; `as_chat` is that of `text_prompt`, for a question that begins anew."""
        thinking = self.found.thinking.wanted
        if not self.earlier.messages:
            return loaded.text_prompt(self.text, self.system, as_chat, thinking)
        said = [message.as_dict() for message in self.earlier.messages]
        return loaded.chat_prompt([*said, {"role": "user", "content": self.text}], self.system, thinking)

    def keep(self, reply: Reply) -> None:
        """Keep question and reply in the log; a reply of which nothing was written is not kept."""
        from tinychat.chat.workspace import lasting_name
        from tinychat.conversation.messages import Message
        from tinychat.conversation.session_file import SavedSession

        if not reply.text:
            return
        partial = reply.summary.finish_reason not in ("stop", "stop_string")
        messages = [*self.earlier.messages, Message("user", self.text), Message("assistant", reply.text, partial)]
        settings = self._asked_for()
        stop = list(settings.pop("stop", ()))
        session = SavedSession(lasting_name(self.model), self.system, messages, settings, stop)
        try:
            log_of_one_shots().keep(session, self.earlier.name, self.earlier.revision)
        except SessionError as error:
            # The reply is there, and a program that reads it has no use for a log.
            if sys.stderr.isatty():
                print(f"not kept for `tinychat log`: {error}", file=sys.stderr)

    def _asked_for(self) -> dict[str, Any]:
        """Return the settings that came with the question; the usual ones may be others when it goes on."""
        from tinychat.chat.settings import NAMES
        from tinychat.generate.precedence import is_asked_for

        origins = self.found.origins
        return {name: self.found.values[name] for name in (*NAMES, "stop") if is_asked_for(origins.get(name, ""))}
