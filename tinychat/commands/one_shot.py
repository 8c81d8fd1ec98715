"""One-shots: the previous one that --continue continues, and the log that they are saved in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.errors import SessionError
from tinychat.generate.prompt import Prompt
from tinychat.user_folders import state_folder, trusted_folder

if TYPE_CHECKING:
    from tinychat.client.remote_model import RemoteReply
    from tinychat.conversation.messages import Message
    from tinychat.conversation.one_shots import OneShots
    from tinychat.generate.model import Model
    from tinychat.generate.precedence import Preferences, Resolved
    from tinychat.generate.reply import Reply
    from tinychat.images.image import Image
    from tinychat.tools.definitions import Tool


@dataclass(frozen=True)
class Previous:
    """The saved one-shot that --continue continues; empty for a new one."""

    name: str | None = None  # in the log
    revision: int = 0  # of its file; another process that continues it changes it
    model: str | None = None  # the MODEL that answered, None for the default one
    # Settings of its flags, role and template by name, the system prompt among them.
    flags: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()

    def under(self, preferences: Preferences) -> Preferences:
        """Return `preferences` with the previous flags added; the current flags override them."""
        return replace(preferences, flags={**self.flags, **preferences.flags})


def open_log() -> OneShots:
    """Return the log below the user's state folder."""
    # Imported here: no reply waits for it.
    from tinychat.conversation.one_shots import OneShots

    try:
        return OneShots(trusted_folder(state_folder(os.environ)))
    except OSError as error:
        raise SessionError(f"the log of one-shots cannot be opened: {error.strerror or error}") from None


def last_one_shot() -> Previous:
    """Return the one-shot that was saved last."""
    log = open_log()
    name = log.last()
    revision, saved = log.revision(name), log.read(name)
    for line in saved.image_problems:
        print(line, file=sys.stderr)
    flags = {**saved.settings, **({"stop": saved.stop} if saved.stop else {})}
    if saved.system is not None:
        flags["system"] = saved.system
    return Previous(name, revision, saved.model, flags, tuple(saved.messages))


def read_images(paths: Sequence[Path]) -> tuple[Image, ...]:
    """Return the images of files; `FieldError` if one cannot be read."""
    if not paths:
        return ()
    # Imported here: it needs numpy.
    from tinychat.images.image import image_of

    return tuple(image_of(path, "images") for path in paths)


@dataclass(frozen=True)
class OneShot:
    """A prompt for a model (None: the default one), after the messages of a previous one-shot, and its settings.

    `images` stand before the text.
    """

    previous: Previous
    text: str
    model: str | None
    system: str | None
    found: Resolved
    images: tuple[Image, ...] = ()

    def prompt(self, loaded: Model, as_chat: bool | None, tools: Sequence[Tool] = ()) -> Prompt:
        """Return the rendered prompt; `as_chat` is as for `text_prompt`, and counts for a new one-shot only.

        The model is told of `tools`: then the prompt is always a message.
        """
        thinking = self.found.thinking.wanted
        if not self.previous.messages and not tools and not self.images:
            return loaded.text_prompt(self.text, self.system, as_chat, thinking)
        return loaded.chat_prompt(self._messages, self.system, thinking, [tool.as_dict() for tool in tools])

    @property
    def messages(self) -> list[dict[str, object]]:
        """The messages of the conversation, with the system prompt."""
        system: list[dict[str, object]] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self._messages]

    @property
    def _messages(self) -> list[dict[str, object]]:
        return [message.as_dict() for message in (*self.previous.messages, self._question)]

    @property
    def _question(self) -> Message:
        # Imported here: the command line starts faster without.
        from tinychat.conversation.attachments import message_with

        images = [image.seen_in(self.found.chat.image_detail) for image in self.images]
        return message_with((), images, self.text)

    def save(self, reply: Reply | RemoteReply) -> None:
        """Save prompt and reply in the log, unless the reply is empty."""
        from tinychat.chat.workspace import lasting_name
        from tinychat.conversation.messages import Message
        from tinychat.conversation.session_file import SavedSession

        if not reply.text:
            return
        partial = reply.summary.finish_reason not in ("stop", "stop_string")
        messages = [*self.previous.messages, self._question, Message("assistant", reply.text, partial)]
        settings = self._saved_settings()
        stop = list(settings.pop("stop", ()))
        session = SavedSession(lasting_name(self.model), self.system, messages, settings, stop)
        try:
            open_log().keep(session, self.previous.name, self.previous.revision)
        except SessionError as error:
            # The reply is written; only a person has a use for this line.
            if sys.stderr.isatty():
                print(f"not saved for `tinychat log`: {error}", file=sys.stderr)

    def _saved_settings(self) -> dict[str, Any]:
        """Return the settings of flags, role and template; defaults may have changed when it is continued."""
        from tinychat.chat.settings import NAMES
        from tinychat.generate.precedence import is_asked_for

        origins = self.found.origins
        return {name: self.found.values[name] for name in (*NAMES, "stop") if is_asked_for(origins.get(name, ""))}
