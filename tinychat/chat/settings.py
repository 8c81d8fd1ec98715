"""Settings of a conversation by name, as /set and /retry change and /show shows them."""

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
# Cache and threads belong to the model, texts are saved apart, and what the screen shows is the loop's.
NAMES = tuple(name for name in SETTABLE if name not in ("kv", "threads", "stop", "system", "stats"))


def settings_of(chat: Chat) -> dict[str, object]:
    """Return every setting of `chat` by name."""
    others = {"context": chat.model.context_size, "think": str(chat.thinking), "overflow": chat.overflow}
    return {name: others[name] if name in others else getattr(chat.request, name) for name in NAMES}


def change_setting(
    chat: Chat,
    name: str,
    value: Any,
    origin: str | None = SET_HERE,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Set what `name` names to a value, or to what a person's text says, and note that it is from `origin`.

    The text "none" brings back what held before, where it is no value. `on_progress` is called with (done, total) while
    kernels are compiled for the change.

    Raises
    ------
    SettingError
        If there is no such setting, or the value is out of range.
    """
    name = known_name(name)
    setting = SETTINGS[name]
    if value == "none" and setting.default not in (None, ()):
        value, origin = chat.standing.values.get(name, setting.default), chat.standing.origins.get(name)
    value = setting.read(value)
    if name == "overflow":
        chat.overflow = as_policy(str(value))
    elif name == "context":
        _resize(chat, value)
    elif name == "kv":
        if value != chat.model.sequence.kv:
            chat.model.sequence = chat.model.sequence.on_changed_engine(kv=value, progress=on_progress)
    elif name == "threads":
        _change_threads(chat, value, on_progress)
    elif name == "system":
        chat.system = None if value == "none" else value
    elif name == "think":
        chat.thinking = as_thinking(value)
    else:
        chat.request = replace(chat.request, **{name: value})
        if name == "seed":
            chat.seed()
    chat.origins.pop(name, None)
    if origin is not None:
        chat.origins[name] = origin


def _resize(chat: Chat, size: int) -> None:
    """Resize the cache, which keeps what it has read: a conversation that has outgrown it goes on at once."""
    sequence = chat.model.sequence
    if not chat.messages and size < len(sequence.ids):
        # What an earlier conversation left in the cache must not prevent a smaller one.
        sequence.rewind(0)
    if size != sequence.context_size:
        before, trained = sequence.context_size, chat.model.trained_length
        chat.model.resize(size)
        if size > before:
            # What was forgotten for lack of room may have some now.
            chat.see_all()
        if size > trained >= before:
            chat.on_notice(beyond_training(size, trained))


def _change_threads(chat: Chat, count: int, on_progress: Callable[[int, int], None] | None) -> None:
    """Compute with another number of threads; the conversation goes on."""
    if count != chat.model.sequence.engine.threads:
        chat.model.sequence = chat.model.sequence.on_changed_engine(threads=count, progress=on_progress)
    if (used := chat.model.sequence.engine.threads) < count:
        chat.on_notice(fewer_threads(count, used))


def changed_sampling(request: Request, values: Mapping[str, str]) -> Request:
    """Return `request` with other sampling.

    Raises
    ------
    SettingError
        If a name is not a sampling setting, or its value is out of range.
    """
    known = {known_name(name, SAMPLING_FIELDS): value for name, value in values.items()}
    for name in known:
        if name not in SAMPLING_FIELDS:
            raise SettingError(f"{name} is not a setting of the sampler: use /set {name}")
    return replace(request, **{name: SETTINGS[name].read(value) for name, value in known.items()})


def known_name(name: str, offered: Sequence[str] = SETTABLE) -> str:
    """Return the name of a setting as we write it.

    Raises
    ------
    SettingError
        If there is none of this name: the message names the nearest of those offered, or all of them.
    """
    known = name.lstrip("-").replace("-", "_").lower()
    if known in SETTABLE:
        return known
    nearest = get_close_matches(known, offered, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]}?" if nearest else f"choose one of {', '.join(offered)}"
    raise SettingError(f"there is no setting {name}: {advice}")
