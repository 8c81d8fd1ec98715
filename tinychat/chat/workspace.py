"""A conversation's file, in which it is saved, and its model, which can be changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from tinychat.chat.draft import Draft
from tinychat.chat.saved_caches import SavedCaches
from tinychat.chat.settings import change_setting, settings_of
from tinychat.conversation.conversation import Chat
from tinychat.conversation.history import History
from tinychat.conversation.messages import Message, exchanges
from tinychat.conversation.one_shots import OneShots
from tinychat.conversation.request_state import SAVED
from tinychat.conversation.session_file import SavedSession
from tinychat.conversation.store import SessionStore, is_automatic
from tinychat.errors import SessionError, SettingError
from tinychat.generate.model import Model
from tinychat.generate.precedence import Resolved
from tinychat.user_folders import trusted_state_folder

_SECONDS_BETWEEN_SAVES = 2.0


def _no_other_model(name: str) -> Model:
    raise SettingError(f"the model {name} cannot be opened from here: leave, and start the chat with it")


@dataclass(frozen=True)
class Models:
    """The models that a conversation may go on with.

    Attributes
    ----------
    open : callable
        Loads the model of a name.
    names : callable
        Lists names that `open` takes, for completion.
    advised : callable, optional
        Says how a model's replies are written, by the name that it was opened by, in the role that was entered.
    default : callable
        Names the model that answers where none is named.
    ready : callable
        Lists names of models that are on this machine.
    roles : callable
        Gives the settings of each role by its name, with its "model" if it has one.
    enter_role : callable
        Lets `advised` follow a role; None leaves it.
    """

    open: Callable[[str], Model] = _no_other_model
    names: Callable[[], Iterable[str]] = tuple
    advised: Callable[[str | None, Model], Resolved] | None = None
    default: Callable[[], str] = lambda: "of no name"
    ready: Callable[[], list[str]] = list
    roles: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    enter_role: Callable[[str | None], None] = lambda name: None


_THIS_MODEL_ALONE = Models()


def session_store() -> SessionStore:
    """Return the store below the user's state folder; a one-shot that is loaded becomes one of its conversations."""
    state = trusted_state_folder(os.environ)
    return SessionStore(state / "sessions", OneShots(state))


class Workspace:
    """A conversation that is saved at every change, and whose model can be changed.

    Parameters
    ----------
    chat : Chat
        The conversation; its `on_change` is taken over once `autosave` is called.
    store : SessionStore, optional
        Where conversations are saved; by default below the user's state folder.
    model : str, optional
        The MODEL that the conversation was begun with, None for the default model.
    models : Models
        Those that `change_model` knows.
    clock : callable, optional
        Seconds that only grow.
    private : bool
        Whether nothing is ever written.
    caches : SavedCaches, optional
        Keeps what the model has read of conversations that are saved; by default that is read again.

    Attributes
    ----------
    name : str or None
        What the conversation is saved as; None before its first message.
    role : str or None
        The role of the configuration that was entered last.
    """

    def __init__(
        self,
        chat: Chat,
        store: SessionStore | None = None,
        model: str | None = None,
        models: Models = _THIS_MODEL_ALONE,
        clock: Callable[[], float] = monotonic,
        private: bool = False,
        caches: SavedCaches | None = None,
        role: str | None = None,
    ) -> None:
        self.chat = chat
        self.store = store or session_store()
        self._private = private
        self.models = models
        self.name: str | None = None
        self.role = role
        self._model = lasting_name(model)
        self._clock = clock
        self._caches = caches or SavedCaches(self.store.folder, 0)
        self._saved_at = 0.0
        self._revision = 0
        self._failed = self._writing = self._unasked = False
        self._pending = Draft()

    def autosave(self) -> None:
        """Save from now on at every change, during a reply every two seconds, unless the chat is private."""
        if not self._private:
            self.chat.on_change = self._changed

    def leave_file(self) -> str | None:
        """Begin another conversation: leave the file as it is, and return its name."""
        self.keep_cache()
        name, self.name = self.name, None
        return name

    def keep_cache(self) -> None:
        """Keep what the model has read of this conversation, for when it goes on."""
        if self.name is not None and not (self._failed or self._private):
            self._caches.keep(self.name, self.chat.model)

    def save(self, name: str | None = None) -> str:
        """Save now, from now on as `name` where one is given, and return the name.

        Raises
        ------
        SessionError
            If another conversation has this name, or the file cannot be written.
        """
        self._refuse_if_private()
        if name is not None and name != self.name and self.store.exists(name):
            raise SessionError(f"there is a conversation {name} already: choose another name, or /load it")
        replaced = self._automatic_name() if name != self.name else None
        name = name or self._own_name() or self.store.new_name()
        self.store.write(name, self._snapshot())
        if replaced is not None and replaced != name:
            # It has a name of the user's own now: nobody would look for it under the other one.
            self.store.remove(replaced)
            self._caches.rename(replaced, name)
        self._enter(name)
        self._saved_at = self._clock()
        if self._failed:
            self._failed = False
            self.autosave()
        return name

    def _automatic_name(self) -> str | None:
        """Return the name of the file that is ours, if nobody has chosen it."""
        name = self.name
        is_ours = name is not None and self.store.revision(name) == self._revision
        return name if name is not None and is_ours and is_automatic(name) else None

    def _own_name(self) -> str | None:
        """Return the name of the file that is ours: a new one if another program has written to it meanwhile."""
        if self.name is None or self.store.revision(self.name) in (0, self._revision):
            return self.name
        name = self.store.new_name(f"{self.name}-copy")
        self.chat.on_notice(f"another chat goes on with {self.name}: this one is saved as {name} from here on")
        return name

    def _enter(self, name: str) -> None:
        self.name, self._revision, self._unasked = name, self.store.revision(name), False

    def rename(self, name: str, other: str | None = None) -> str | None:
        """Give this conversation, or another one, a new name; return the old one, None if there was none.

        Raises
        ------
        SessionError
            If another conversation has this name, there is none to rename, or the file cannot be written.
        """
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
        """Delete a saved conversation; return whether it was this one, which then begins anew.

        Raises
        ------
        SessionError
            If there is none of this name, or it cannot be deleted.
        """
        self._refuse_if_private()
        self.store.delete(name)
        self._caches.remove(name)
        if name != self.name:
            return False
        self.name = None
        self.chat.clear()
        return True

    def _refuse_if_private(self) -> None:
        if self._private:
            raise SessionError(
                "this chat is private: nothing is saved or changed; /export FILE writes it where you say"
            )

    def load(self, name: str) -> list[str]:
        """Continue the conversation of this name, and return lines that describe its state.

        Raises
        ------
        SessionError
            If there is none, or its file is damaged; the present conversation goes on.
        SettingError
            If one of its settings is out of range; likewise.
        """
        saved, context = self.store.read(name), self.chat.model.context_size
        self.keep_cache()
        self._restore(saved)
        self._enter(name)
        self._caches.recall(name, self.chat.model)
        return self._standing(saved, context)

    def take_pending(self) -> Draft:
        """Return, once, the message that had no reply yet when the conversation was saved."""
        pending, self._pending = self._pending, Draft()
        return pending

    def fork(self) -> tuple[str, str]:
        """Go on in a copy; return the names of the old conversation and of the copy."""
        if not self.chat.messages:
            raise SettingError("there is nothing to fork: the conversation is empty")
        before = self.save()
        # As if it had been loaded: the file that it is in stays.
        self.name = None
        now = self.save(self.store.new_name(f"{before}-fork"))
        return before, now

    def change_model(self, name: str) -> None:
        """Let the model of this name go on with the conversation.

        Raises
        ------
        TinychatError
            If it cannot be loaded; the present one goes on.
        """
        self.chat.model = self.models.open(name)
        self.chat.reply_ids, self.chat.summary = [], None
        # What the smaller context of one model forgot, that of another may hold.
        self.chat.see_all()
        self._model = lasting_name(name)
        if self.models.advised is not None:
            self.chat.adopt(self.models.advised(name, self.chat.model))
        self.chat.on_change()

    def change_role(self, name: str | None) -> None:
        """Let the role of this name go on with the conversation; None leaves the present one.

        What the role says comes before what the command line and this conversation have set.

        Raises
        ------
        SettingError
            If there is no such role.
        TinychatError
            If its model cannot be loaded; the present role goes on.
        """
        roles = self.models.roles()
        if name is not None and name not in roles:
            known = ", ".join(roles) or "none"
            raise SettingError(f"the configuration has no role {name!r}; it has {known}")
        section = {} if name is None else roles[name]
        if "model" in section and lasting_name(section["model"]) != self._model:
            self.change_model(section["model"])
        self.models.enter_role(name)
        self.role = name
        for setting in section:
            self.chat.origins.pop(setting, None)
        if self.models.advised is not None:
            self.chat.adopt(self.models.advised(self._model, self.chat.model))
        for setting in ("context", "kv"):
            if setting in section:
                change_setting(self.chat, setting, section[setting], f"role {name}")
        if "seed" in section:
            self.chat.seed()
        self.chat.on_change()

    def _changed(self) -> None:
        """Save, but in the middle of a reply only now and then."""
        writing = self.chat.writing
        began, self._writing = writing and not self._writing, writing
        if not self.chat.messages and self.name is None:
            return
        if writing and not began and self._clock() - self._saved_at < _SECONDS_BETWEEN_SAVES:
            return
        if self._unasked and not self.chat.messages and self.chat.history == History():
            # Its only message was withdrawn: --continue must find the previous conversation.
            self.store.remove(self.name or "")
            self.name = None
            return
        unasked = self._unasked or self.name is None
        try:
            self.save()
            self._unasked = unasked
        except SessionError as error:
            # Reported once: the conversation goes on without a file.
            self._failed = True
            self.chat.on_change = lambda: None
            self.chat.on_notice(f"this conversation is no longer saved: {error}")

    def _snapshot(self) -> SavedSession:
        chat = self.chat
        stop = list(chat.request.stop)
        return SavedSession(self._model, chat.system, chat.messages, settings_of(chat), stop, chat.history)

    def _restore(self, saved: SavedSession) -> None:
        messages, history, pending = resumed(saved)
        _restore_settings(self.chat, saved.settings)
        self.chat.request = replace(self.chat.request, stop=saved.stop)
        self.chat.system = saved.system
        self.chat.origins |= {"stop": SAVED, "system": SAVED}
        self.chat.attachments, self.chat.summary, self.chat.miss = [], None, None
        autosave, self.chat.on_change = self.chat.on_change, lambda: None
        self.chat.replace_messages(messages, history)
        self.chat.on_change = autosave
        self._pending = pending

    def _standing(self, saved: SavedSession, context: int) -> list[str]:
        """Describe the conversation; `context` is the size that there was before it was loaded."""
        messages, had = self.chat.messages, saved.settings.get("context", context)
        lines = [f"{self.name}: {len(messages)} messages"]
        if messages and messages[-1].partial:
            lines.append("the last reply was stopped in the middle: /continue goes on with it")
        if self._pending.text:
            lines.append("your last message had no reply yet: send it again")
        if saved.model != self._model:
            lines.append(f"it was begun with the model {saved.model or self.models.default()}")
        if had != context:
            now = self.chat.model.context_size
            lines.append(
                f"it had a context of {had} tokens" + (f", now there are {now}" if now != had else ", as again now")
            )
        return lines


def resumed(saved: SavedSession) -> tuple[list[Message], History, Draft]:
    """Return the conversation to its last reply, its history, and the message that waited for its first word."""
    messages, history = saved.messages, saved.history
    if history is None or (messages and not history.past):
        # Written by a version that kept no history.
        history = History.of_exchanges(messages)
    if not messages or not (messages[-1].role == "user" or messages[-1].is_unwritten):
        return messages, history, Draft()
    change = history.past[-1]
    if messages[-1].is_unwritten and messages[-2].role == "tool" and change.kept < len(messages) - 1:
        # The results of its calls stay: /regen answers them.
        return messages[:-1], history, Draft()
    before, undone = history.undone(messages)
    asked = messages[change.kept :]
    # There is no pending message where a reply was being written again.
    waits = bool(asked) and asked[0].role == "user"
    pending = Draft(asked[0].content, len(exchanges(change.tail))) if waits else Draft()
    return before, replace(undone, future=()), pending


def lasting_name(model: str | None) -> str | None:
    """Return the name by which a model is found from any working folder."""
    is_path = model is not None and (os.path.isdir(model) or (model.endswith(".gguf") and os.path.isfile(model)))
    return os.path.abspath(model) if model is not None and is_path else model


def _restore_settings(chat: Chat, settings: Mapping[str, object]) -> None:
    """Change all settings, or none if one is unknown or out of range."""
    before = settings_of(chat)
    try:
        _change_settings(chat, settings)
    except SettingError:
        _change_settings(chat, before)
        raise


def _change_settings(chat: Chat, settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        # A conversation that has outgrown a context needs its own again; a larger one does no harm.
        if name != "context" or (isinstance(value, int) and value > chat.model.context_size):
            change_setting(chat, name, value, SAVED)
