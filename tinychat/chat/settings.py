"""Settings of a conversation by name, as /set and /retry change and /show shows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from tinychat.conversation.conversation import Chat
from tinychat.conversation.overflow import as_policy
from tinychat.conversation.reply_settings import SET_HERE
from tinychat.engine.context import beyond_training
from tinychat.errors import FieldError, SettingError
from tinychat.generate.request import SAMPLING_FIELDS, Request
from tinychat.generate.thinking import as_thinking

_REQUEST_FIELDS = (*SAMPLING_FIELDS, "max_tokens")
_DEFAULTS = Request()
NAMES = (*_REQUEST_FIELDS, "overflow", "context", "think")
# Stop texts are saved apart from the other settings, and what the screen shows is the loop's.
SETTABLE = (*NAMES, "kv", "stop", "stats")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


def settings_of(chat: Chat) -> dict[str, object]:
    """Return every setting of `chat` by name."""
    fields = {name: getattr(chat.request, name) for name in _REQUEST_FIELDS}
    return fields | {"overflow": chat.overflow, "context": chat.model.context_size, "think": str(chat.thinking)}


def change_setting(chat: Chat, name: str, value: str, origin: str = SET_HERE) -> None:
    """Set what `name` names to what `value` says, and note that it is from `origin`.

    Raises
    ------
    SettingError
        If there is no such setting, or the value is out of range.
    """
    name = known_name(name)
    if name == "overflow":
        chat.overflow = as_policy(value)
    elif name == "context":
        _resize(chat, value)
    elif name == "kv":
        _change_kv(chat, value)
    elif name == "stop":
        chat.request = replace(chat.request, stop=as_stop_texts(value))
    elif name == "think":
        chat.thinking = as_thinking(value)
    else:
        chat.request = changed_request(chat.request, {name: value})
        if name == "seed":
            chat.seed()
    chat.origins[name] = origin


def check_settings(values: Mapping[str, object]) -> None:
    """Refuse settings that no conversation can have.

    Raises
    ------
    SettingError
        If a name is unknown or a value out of range.
    """
    for name, value in values.items():
        known, text = known_name(name), "none" if value is None else str(value)
        if known == "overflow":
            as_policy(text)
        elif known == "context":
            _as_size(text)
        elif known == "kv":
            continue  # the engine knows its types
        elif known == "stop":
            as_stop_texts(text)
        elif known == "think":
            as_thinking(text)
        else:
            changed_request(_DEFAULTS, {known: text})


def _resize(chat: Chat, value: str) -> None:
    """Resize the cache, which keeps what it has read: a conversation that has outgrown it goes on at once."""
    sequence, size = chat.model.sequence, _as_size(value)
    if not chat.messages and 0 < size < len(sequence.ids):
        # What an earlier conversation left in the cache must not prevent a smaller one.
        sequence.rewind(0)
    if size != sequence.context_size:
        before, trained = sequence.context_size, chat.model.trained_length
        sequence.resize(size)
        if size > before:
            # What was forgotten for lack of room may have some now.
            chat.forgotten = 0
        if size > trained >= before:
            chat.on_notice(beyond_training(size, trained))


def _change_kv(chat: Chat, value: str) -> None:
    """Give the cache another type; the conversation goes on in it."""
    said = False

    def say_once(_done: int, _steps: int) -> None:
        nonlocal said
        if not said:
            chat.on_notice(f"compiling kernels for a cache of {value}, once for this model's shape: some seconds")
        said = True

    if value != chat.model.sequence.kv:
        chat.model.sequence = chat.model.sequence.with_kv(value, say_once)


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
    return changed_request(request, known)


def changed_request(request: Request, values: Mapping[str, str]) -> Request:
    """Return `request` with other values of its fields, given as text.

    Raises
    ------
    FieldError
        If a value is out of range.
    """
    parsed = {name: _parsed(name, value) for name, value in values.items()}
    # Request checks types and ranges.
    return replace(request, **parsed)  # type: ignore[arg-type]


def as_stop_texts(value: str) -> list[str]:
    r"""Return the stop texts that a person has typed: one as it stands, or several in quotation marks.

    In them, ``\n`` and ``\t`` are a line end and a tab. The word ``none`` alone stands for no text.

    Raises
    ------
    FieldError
        If a quotation mark is not closed, or there is no text between two.
    """
    if value == "none":
        return []
    texts = [value]
    if value[0] in "\"'":
        words = shlex.shlex(value, posix=True, punctuation_chars=False)
        words.whitespace_split, words.escape = True, ""
        try:
            texts = [*words]
        except ValueError:
            raise FieldError("stop", f"has a quotation mark that is not closed: {value}") from None
    if not all(texts):
        raise FieldError("stop", "must not be empty: an empty text would end every reply at once")
    return [_unescaped(text) for text in texts]


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def known_name(name: str, offered: Sequence[str] = SETTABLE) -> str:
    """Return the name of a setting as we write it.

    Raises
    ------
    SettingError
        If there is none of this name: the message names the nearest of those offered, or all of them.
    """
    known = name.lstrip("-").replace("-", "_").lower()
    if known in NAMES or known in ("kv", "stop"):
        return known
    nearest = get_close_matches(known, offered, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]}?" if nearest else f"choose one of {', '.join(offered)}"
    raise SettingError(f"there is no setting {name}: {advice}")


def _parsed(name: str, value: str) -> int | float | str | None:
    """Return the number that a text is, None for "none" where that is the default, and any other text as it is."""
    if value == "none" and getattr(_DEFAULTS, name) is None:
        return None
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _as_size(value: str) -> int:
    if not value.isdecimal():
        raise FieldError("context", f"must be a whole number of tokens, not {value!r}")
    return int(value)
