"""Settings of a conversation by name, as /set and /retry change and /show shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from difflib import get_close_matches

from tinychat.chat.overflow import as_policy
from tinychat.chat.session import Chat
from tinychat.errors import SettingError
from tinychat.generate.settings import SamplingSettings
from tinychat.generate.stopping import StopConditions

_SAMPLING: Mapping[str, Callable[[str], int | float]] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repeat_penalty": float,
    "repeat_last_n": int,
    "seed": int,
}
_MAY_BE_NONE = ("seed", "max_tokens")
SAMPLING_NAMES = tuple(_SAMPLING)
NAMES = (*SAMPLING_NAMES, "max_tokens", "overflow", "context")


def settings_of(chat: Chat) -> dict[str, object]:
    """Return every setting of `chat` by name."""
    limits = {"max_tokens": chat.max_tokens, "overflow": chat.overflow, "context": chat.model.context_size}
    return asdict(chat.sampling) | limits


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
    elif name == "max_tokens":
        chat.max_tokens = StopConditions(max_tokens=_as_limit(value)).max_tokens
    elif name == "context":
        _resize(chat, value)
    else:
        chat.sampling = changed_sampling(chat.sampling, {name: value})
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
        elif known == "max_tokens":
            StopConditions(max_tokens=_as_limit(text))
        elif known == "context":
            _as_size(text)
        else:
            changed_sampling(SamplingSettings(), {known: text})


def _resize(chat: Chat, value: str) -> None:
    """Resize the cache, which keeps what it has read: a conversation that has outgrown it goes on at once."""
    engine, size = chat.model.engine, _as_size(value)
    if not chat.messages and 0 < size < len(engine.cached_ids):
        # What an earlier conversation left in the cache must not stand in the way of a smaller one.
        engine.rewind(0)
    if size != engine.context_size:
        engine.resize(size)


def changed_sampling(sampling: SamplingSettings, values: Mapping[str, str]) -> SamplingSettings:
    """Return `sampling` with other values.

    Raises
    ------
    SettingError
        If a name is no sampling setting, or its value is out of range.
    """
    for name in map(_known, values):
        if name not in _SAMPLING:
            raise SettingError(f"{name} is no setting of the sampler: use /set {name}")
    parsed = {_known(name): _parsed(_known(name), value) for name, value in values.items()}
    # SamplingSettings checks what the types leave open.
    return replace(sampling, **parsed)  # type: ignore[arg-type]


def _known(name: str) -> str:
    known = name.lstrip("-").replace("-", "_").lower()
    if known in NAMES:
        return known
    nearest = get_close_matches(known, NAMES, n=1, cutoff=0.5)
    advice = f"did you mean {nearest[0]}?" if nearest else f"choose one of {', '.join(NAMES)}"
    raise SettingError(f"there is no setting {name}: {advice}")


def _parsed(name: str, value: str) -> int | float | None:
    if name in _MAY_BE_NONE and value == "none":
        return None
    try:
        return _SAMPLING[name](value)
    except ValueError:
        kind = "a whole number" if _SAMPLING[name] is int else "a number"
        raise SettingError(f"{name} must be {kind}, not {value!r}") from None


def _as_limit(value: str) -> int | None:
    try:
        return None if value == "none" else int(value)
    except ValueError:
        raise SettingError(f"max_tokens must be a whole number or none, not {value!r}") from None


def _as_size(value: str) -> int:
    if not value.isdecimal():
        raise SettingError(f"context must be a whole number of tokens, not {value!r}")
    return int(value)
