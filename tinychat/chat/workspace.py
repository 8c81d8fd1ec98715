"""The file of a conversation, and its model and role."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from tinychat.chat.draft import Draft
from tinychat.chat.settings import change_setting, settings_of
from tinychat.conversation.conversation import Chat
from tinychat.conversation.history import History
from tinychat.conversation.messages import Message, exchanges, open_calls
from tinychat.conversation.one_shots import OneShots
from tinychat.conversation.request_state import SAVED
from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore, is_automatic
from tinychat.conversation.tool_rounds import result_message
from tinychat.engine.saved_caches import SavedCaches
from tinychat.errors import SessionError, SettingError
from tinychat.generate.model import Model
from tinychat.generate.precedence import Resolved
from tinychat.user_folders import trusted_state_folder

_SECONDS_BETWEEN_SAVES = 2.0


_UNSEEN = "{} reads text alone: it does not see the images of this conversation"


def _no_other_model(name: str) -> Model:
    raise SettingError(f"cannot switch to the model {name} here: leave, and start the chat with it")


@dataclass(frozen=True)
class Models:
    """The models and roles that a conversation can switch to."""

    open: Callable[[str], Model] = _no_other_model  # loads a model by name for the conversation
    open_draft: Callable[[str], Model | Path] = _no_other_model  # loads one for drafts, or finds a drafter's folder
    names: Callable[[], Iterable[str]] = tuple  # returns names for completion
    # Returns the settings in use for a name and its loaded model, in the role that was entered.
    settings_for: Callable[[str | None, Model], Resolved] | None = None
    default: Callable[[], str] = lambda: "without a name"  # returns the name of the default model
    ready: Callable[[], list[str]] = list  # returns names of models on this machine
    # Returns the settings of each role by name, with its "model" if it has one.
    roles: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    enter_role: Callable[[str | None], None] = lambda name: None  # enters a role for `settings_for`; None leaves it


def session_store() -> SessionStore:
    """Return the store below the user's state folder, which also reads one-shots."""
    state = trusted_state_folder(os.environ)
    return SessionStore(state / "sessions", OneShots(state))


class Workspace:
    """The file of a conversation, saved at every change, and its model and role, which can be switched.

    `autosave` replaces `chat.on_change`. By default `store` is that below the user's state folder, there are no other
    `models`, and no `caches` are saved; `model` is the name of the chat's model, None for the default one. In a
    `private` chat nothing is ever written.
    """

    def __init__(
        self,
        chat: Chat,
        store: SessionStore | None = None,
        model: str | None = None,
        models: Models | None = None,
        clock: Callable[[], float] = monotonic,
        private: bool = False,
        caches: SavedCaches | None = None,
        role: str | None = None,
    ) -> None:
        self.chat = chat
        self.store = store or session_store()
        self.models = models or Models()
        self.name: str | None = None  # of the saved conversation, None before its first message
        self.role = role
        self.private = private
        self._model = lasting_name(model)
        self._clock = clock
        self._caches = caches or SavedCaches(self.store.folder, 0)
        self._saved_at = 0.0
        # Of the file as this process wrote or read it.
        self._revision = 0
        # Whether saving has failed; a reply is being written; only autosave has written the file.
        self._failed = self._writing = self._is_automatic = False

    def autosave(self) -> None:
        """Save from now on at every change, during a reply every two seconds, unless the chat is private."""
        if not self.private:
            self.chat.on_change = self._changed

    def leave_file(self) -> str | None:
        """Detach from the file, which stays as it is, and return its name."""
        self.save_cache()
        name, self.name = self.name, None
        return name

    def save_cache(self) -> None:
        """Save the KV cache of this conversation, for when it is loaded again."""
        if self.name is not None and self.chat.model.runs_here and not (self._failed or self.private):
            self._caches.save(self.name, self.chat.model.sequence)

    def save(self, name: str | None = None) -> str:
        """Save now, and from now on, as `name` or the present name; return the name. A SessionError if it is taken."""
        self._refuse_if_private()
        if name is not None and name != self.name and self.store.exists(name):
            raise SessionError(f"the conversation {name} exists already: choose another name, or /load it")
        replaced = self._automatic_name() if name != self.name else None
        name = name or self._own_name() or self.store.new_name()
        self.store.write(name, self._snapshot())
        if replaced is not None and replaced != name:
            # The user has chosen a name: the automatic one is not needed.
            self.store.remove(replaced)
            self._caches.rename(replaced, name)
        self._enter(name)
        self._saved_at = self._clock()
        if self._failed:
            self._failed = False
            self.autosave()
        return name

    def _automatic_name(self) -> str | None:
        """Return the name of our file, if it was made automatically."""
        if self.name is None or not is_automatic(self.name) or self.store.revision(self.name) != self._revision:
            return None
        return self.name

    def _own_name(self) -> str | None:
        """Return the name of our file: a new one if another process has written to it."""
        if self.name is None or self.store.revision(self.name) in (0, self._revision):
            return self.name
        name = self.store.new_name(f"{self.name}-copy")
        self.chat.on_notice(f"another chat has changed {self.name}: this one is saved as {name} from now on")
        return name

    def _enter(self, name: str) -> None:
        self.name, self._revision, self._is_automatic = name, self.store.revision(name), False

    def rename(self, name: str, other: str | None = None) -> str | None:
        """Rename this conversation or the `other` one; return the old name, None if this one had none."""
        before = other or self.name
        if before is None:
            self.save(name)
            return None
        self._refuse_if_private()
        self.store.rename(before, name)
        self._caches.rename(before, name)
        if before == self.name:
            self._enter(name)
        return before

    def delete(self, name: str) -> bool:
        """Delete a saved conversation; return whether it was this one, which then starts empty."""
        self._refuse_if_private()
        self.store.delete(name)
        self._caches.remove(name)
        if name != self.name:
            return False
        self.name = None
        self.chat.clear()
        return True

    def _refuse_if_private(self) -> None:
        if self.private:
            raise SessionError("this chat is private: nothing is saved; /export FILE writes it to a file")

    def load(self, name: str) -> tuple[list[str], Draft]:
        """Continue a saved conversation; return lines that describe it, and its message without a reply.

        A SessionError or SettingError, for a damaged file, leaves the present conversation as it is.
        """
        saved, context = self.store.read(name), self.chat.model.context_size
        self.save_cache()
        pending = self._restore(saved)
        self._enter(name)
        if self.chat.model.runs_here:
            self._caches.load(name, self.chat.model.sequence)
        return self._description(saved, context, pending), pending

    def fork(self) -> tuple[str, str]:
        """Continue in a copy; return the names of the conversation and of the copy."""
        if not self.chat.messages:
            raise SettingError("the conversation is empty: send a message before /fork")
        before = self.save()
        # Its file stays as it is.
        self.name = None
        now = self.save(self.store.new_name(f"{before}-fork"))
        return before, now

    def change_model(self, name: str) -> None:
        """Load another model for the conversation; if that fails, the present one stays."""
        self.chat.model = self.models.open(name)
        self.chat.reply_ids, self.chat.summary = [], None
        self.chat.earlier.clear()
        # Turns that the smaller context of the last model dropped may fit now.
        self.chat.see_all()
        self._model = lasting_name(name)
        self._adopt_settings(name)
        if not self.chat.model.sees_images and any(message.images for message in self.chat.messages):
            self.chat.on_notice(_UNSEEN.format(self.chat.model.name))
        self.chat.on_change()

    def change_draft(self, draft: bool | str) -> None:
        """Switch drafts on or off, or let the model of this name write them, too; with an error, all stays."""
        if not self.chat.model.runs_here:
            raise SettingError("the server chooses the drafts of its models: start it with --draft")
        self.chat.model.change_drafts(self.models.open_draft(draft) if isinstance(draft, str) else draft)

    def change_role(self, name: str | None) -> None:
        """Enter a role, or leave it with None; its settings override those of flags and of this conversation."""
        roles = self.models.roles()
        if name is not None and name not in roles:
            known = f"; expected one of {', '.join(roles)}" if roles else ": the configuration file has none"
            raise SettingError(f"unknown role {name!r}{known}")
        section = {} if name is None else roles[name]
        if "model" in section and lasting_name(section["model"]) != self._model:
            self.change_model(section["model"])
        self.models.enter_role(name)
        self.role = name
        for setting in section:
            self.chat.origins.pop(setting, None)
        self._adopt_settings(self._model)
        for setting in ("context", "kv"):
            if setting in section:
                change_setting(self.chat, setting, section[setting], f"role {name}")
        if "seed" in section:
            self.chat.seed()
        self.chat.on_change()

    def _adopt_settings(self, model: str | None) -> None:
        if self.models.settings_for is not None:
            self.chat.adopt(self.models.settings_for(model, self.chat.model))

    def _changed(self) -> None:
        """Save, but during a reply at most every two seconds."""
        writing = self.chat.writing
        began, self._writing = writing and not self._writing, writing
        if not self.chat.messages and self.name is None:
            return
        if writing and not began and self._clock() - self._saved_at < _SECONDS_BETWEEN_SAVES:
            return
        if self._is_automatic and not self.chat.messages and self.chat.history == History():
            # The only message was withdrawn: --continue must find the previous conversation.
            self.store.remove(self.name or "")
            self.name = None
            return
        is_automatic_file = self._is_automatic or self.name is None
        try:
            self.save()
            self._is_automatic = is_automatic_file
        except SessionError as error:
            # Reported once: the conversation continues without a file.
            self._failed = True
            self.chat.on_change = lambda: None
            self.chat.on_notice(f"this conversation is no longer saved: {error}")

    def _snapshot(self) -> SavedSession:
        chat = self.chat
        stop = list(chat.request.stop)
        return SavedSession(self._model, chat.system, chat.messages, settings_of(chat), stop, chat.history)

    def _restore(self, saved: SavedSession) -> Draft:
        messages, history, pending = resumed(saved)
        _restore_settings(self.chat, saved.settings)
        self.chat.request = replace(self.chat.request, stop=saved.stop)
        self.chat.system = saved.system
        self.chat.origins |= {"stop": SAVED, "system": SAVED}
        self.chat.attachments, self.chat.summary, self.chat.miss = [], None, None
        autosave, self.chat.on_change = self.chat.on_change, lambda: None
        self.chat.replace_messages(messages, history)
        self.chat.on_change = autosave
        return pending

    def _description(self, saved: SavedSession, context: int, pending: Draft) -> list[str]:
        """Describe the loaded conversation; `context` is the context size before it was loaded."""
        messages, saved_context = self.chat.messages, saved.settings.get("context", context)
        lines = [f"{self.name}: {len(messages)} messages"]
        if messages and messages[-1].partial:
            lines.append("the last reply is incomplete: /continue continues it")
        if pending.text:
            lines.append("your last message had no reply: send it again")
        lines += saved.image_problems
        if not self.chat.model.sees_images and saved.images:
            lines.append(_UNSEEN.format(self.chat.model.name))
        if saved.model != self._model:
            lines.append(f"its model was {saved.model or self.models.default()}")
        if saved_context != context:
            now = self.chat.model.context_size
            is_now = "as now" if now == saved_context else f"now {now}"
            lines.append(f"its context had {saved_context} tokens, {is_now}")
        return lines


def resumed(saved: SavedSession) -> tuple[list[Message], History, Draft]:
    """Return the conversation up to its last reply, its history, and a message that had no reply yet."""
    # Of calls without a result nobody knows how far they came when the program ended.
    cut = [result_message(call, "error: the program ended before the result") for call in open_calls(saved.messages)]
    messages, history = [*saved.messages, *cut], saved.history
    if history is None or (messages and not history.past):
        # Written by a version without history.
        history = History.of_exchanges(messages)
    if not messages or not (messages[-1].role == "user" or messages[-1].is_unwritten):
        return messages, history, Draft()
    change = history.past[-1]
    if messages[-1].is_unwritten and messages[-2].role == "tool" and change.shared < len(messages) - 1:
        # The results of tool calls stay: /regen answers them.
        return messages[:-1], history, Draft()
    before, undone = history.undone(messages)
    added = messages[change.shared :]
    # Without a message, a reply was being written again.
    has_message = bool(added) and added[0].role == "user"
    pending = Draft()
    if has_message:
        images = tuple(placed.image for placed in added[0].images)
        pending = Draft(added[0].content, len(exchanges(change.tail)), images=images)
    return before, replace(undone, future=()), pending


def lasting_name(model: str | None) -> str | None:
    """Return a name that finds the model from any working folder: a path becomes absolute."""
    if model is not None and (os.path.isdir(model) or (model.endswith(".gguf") and os.path.isfile(model))):
        return os.path.abspath(model)
    return model


def _restore_settings(chat: Chat, settings: Mapping[str, object]) -> None:
    """Change all settings, or none if one is invalid."""
    before = settings_of(chat)
    try:
        _change_settings(chat, settings)
    except SettingError:
        _change_settings(chat, before)
        raise


def _change_settings(chat: Chat, settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        # A long conversation needs the context that it had; a larger one does no harm. That of a server is what it is.
        needs_more = isinstance(value, int) and value > chat.model.context_size and chat.model.runs_here
        if name != "context" or needs_more:
            change_setting(chat, name, value, SAVED)
