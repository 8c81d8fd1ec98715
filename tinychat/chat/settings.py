"""Settings of a conversation by name, as /set and /retry change and /show shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from tinychat.chat.conversation import Chat
from tinychat.chat.overflow import as_policy
from tinychat.engine.context import beyond_training
from tinychat.errors import FieldError, SettingError
from tinychat.generate.request import SAMPLING_FIELDS, Request

_REQUEST_FIELDS = (*SAMPLING_FIELDS, "max_tokens")
_DEFAULTS = Request()
NAMES = (*_REQUEST_FIELDS, "overflow", "context")


def settings_of(chat: Chat) -> dict[str, object]:
    """Return every setting of `chat` by name."""
    fields = {name: getattr(chat.request, name) for name in _REQUEST_FIELDS}
    return fields | {"overflow": chat.overflow, "context": chat.model.context_size}


def change_setting(chat: Chat, name: str, value: str) -> None:
    """Set what `name` names to what `value` says.

    Raises
    ------
    SettingError
        If there is no such setting, or the value is out of range.
    """
    name = _known(name)
    if name == "overflow":
        chat.overflow = as_policy(value)
    elif name == "context":
        _resize(chat, value)
    else:
        chat.request = changed_request(chat.request, {name: value})
        if name == "seed":
            chat.seed()


def check_settings(values: Mapping[str, object]) -> None:
    """Refuse settings that no conversation can have.

    Raises
    ------
    SettingError
        If a name is unknown or a value out of range.
    """
    for name, value in values.items():
        known, text = _known(name), "none" if value is None else str(value)
        if known == "overflow":
            as_policy(text)
        elif known == "context":
            _as_size(text)
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
        if size > trained >= before:
            chat.on_notice(beyond_training(size, trained))


def changed_sampling(request: Request, values: Mapping[str, str]) -> Request:
    """Return `request` with other sampling.

    Raises
    ------
    SettingError
        If a name is not a sampling setting, or its value is out of range.
    """
    for name in map(_known, values):
        if name not in SAMPLING_FIELDS:
            raise SettingError(f"{name} is not a setting of the sampler: use /set {name}")
    return changed_request(request, {_known(name): value for name, value in values.items()})


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


def _known(name: str) -> str:
    known = name.lstrip("-").replace("-", "_").lower()
    if known in NAMES:
        return known
    nearest = get_close_matches(known, NAMES, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]}?" if nearest else f"choose one of {', '.join(NAMES)}"
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
