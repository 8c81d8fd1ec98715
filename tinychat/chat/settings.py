"""The settings of a conversation by name, for /set, /retry and /show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from tinychat.conversation.conversation import Chat
from tinychat.conversation.overflow import as_policy
from tinychat.conversation.request_state import SET_HERE
from tinychat.engine.context import beyond_training, fewer_threads
from tinychat.errors import SettingError
from tinychat.generate.request import SAMPLING_FIELDS, Request
from tinychat.generate.thinking import as_thinking
from tinychat.settings import SET, SETTINGS, names

SETTABLE = names(entry=SET)
# Saved with the conversation: not those of the model and of the screen, nor stop and system, which have own fields.
NAMES = tuple(name for name in SETTABLE if name not in ("kv", "threads", "share", "draft", "stop", "system", "stats"))

# What the model is loaded with, where nobody gives a value.
_OF_MODEL = ("context", "kv", "threads")
# Those of which "none" is a value.
_MAY_BE_NONE = ("seed", "max_tokens", "stop", "system")
_MAX_SUGGESTIONS = 3


def settings_of(chat: Chat) -> dict[str, object]:
    """Return the settings of `chat` that are saved, by name."""
    others = {"context": chat.model.context_size, "think": str(chat.thinking)}
    others |= {"overflow": chat.overflow, "image_detail": chat.image_detail}
    return {name: others[name] if name in others else getattr(chat.request, name) for name in NAMES}


def change_setting(
    chat: Chat,
    name: str,
    value: Any,
    origin: str | None = SET_HERE,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Set a setting to a value, or to a typed text, and record its `origin`.

    The text "none" restores the earlier value, if it is no value itself. `on_progress` is called with (done, total)
    while kernels compile.
    """
    if name in _OF_MODEL:
        chat.earlier.setdefault(name, _of_model(chat, name))
    value, origin = typed_value(chat, name, value, origin)
    if name == "overflow":
        chat.overflow = as_policy(str(value))
    elif name == "image_detail":
        chat.image_detail = str(value)
    elif name == "context":
        _resize(chat, value)
    elif name == "kv":
        if value != chat.model.sequence.kv:
            chat.model.sequence = chat.model.sequence.on_changed_engine(kv=value, progress=on_progress)
    elif name == "threads":
        _change_threads(chat, value, on_progress)
    elif name == "share":
        chat.model.sequence.engine.take_share(value)
    elif name == "system":
        chat.system = None if value == "none" else value
    elif name == "think":
        chat.thinking = as_thinking(value)
    else:
        chat.request = replace(chat.request, **{name: value})
        if name == "seed":
            chat.seed()
    note_origin(chat, name, origin)


def note_origin(chat: Chat, name: str, origin: str | None) -> None:
    """Record the origin of a setting; None for a default."""
    chat.origins.pop(name, None)
    if origin is not None:
        chat.origins[name] = origin


def typed_value(chat: Chat, name: str, value: Any, origin: str | None) -> tuple[Any, str | None]:
    """Return the value of a setting that somebody typed, and its origin: those of before for "none"."""
    setting = SETTINGS[name]
    if value == "none" and name not in _MAY_BE_NONE:
        origin = chat.standing.origins.get(name)
        if name in _OF_MODEL:
            return chat.earlier[name], origin
        return chat.standing.values.get(name, setting.default), origin
    return setting.read(value), origin


def _of_model(chat: Chat, name: str) -> object:
    sequence = chat.model.sequence
    return {"context": sequence.context_size, "kv": sequence.kv, "threads": sequence.engine.threads}[name]


def _resize(chat: Chat, size: int) -> None:
    """Resize the cache, which keeps its tokens."""
    sequence = chat.model.sequence
    if not chat.messages and size < len(sequence.ids):
        # Tokens of an earlier conversation must not prevent a smaller cache.
        with chat.model.driver.exclusive():
            sequence.rewind(0)
    if size != sequence.context_size:
        before, trained = sequence.context_size, chat.model.trained_length
        chat.model.resize(size)
        if size > before:
            # Dropped turns may fit now.
            chat.see_all()
        if size > trained >= before:
            chat.on_notice(beyond_training(size, trained))


def _change_threads(chat: Chat, count: int, on_progress: Callable[[int, int], None] | None) -> None:
    if count != chat.model.sequence.engine.threads:
        chat.model.sequence = chat.model.sequence.on_changed_engine(threads=count, progress=on_progress)
    if (used := chat.model.sequence.engine.threads) < count:
        chat.on_notice(fewer_threads(count, used))


def changed_sampling(request: Request, values: Mapping[str, str]) -> Request:
    """Return `request` with other sampling settings, given as typed texts."""
    known = {known_name(name, SAMPLING_FIELDS): value for name, value in values.items()}
    for name in known:
        if name not in SAMPLING_FIELDS:
            raise SettingError(f"{name} is not a sampling setting: use /set {name}")
    return replace(request, **{name: SETTINGS[name].read(value) for name, value in known.items()})


def known_name(name: str, offered: Sequence[str] = SETTABLE) -> str:
    """Return the exact name of a setting; an error suggests one of `offered`."""
    known = name.lstrip("-").replace("-", "_").lower()
    if known in SETTABLE:
        return known
    longer = [each for each in offered if known and each.startswith(known)]
    nearest = longer or get_close_matches(known, offered, n=1, cutoff=0.5)
    if nearest:
        raise SettingError(f"unknown setting {name!r}: did you mean {' or '.join(nearest[:_MAX_SUGGESTIONS])}?")
    raise SettingError(f"unknown setting {name!r}; expected one of {', '.join(offered)}")
