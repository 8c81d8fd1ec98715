"""The makers' advice for sampling: ``generation_config.json`` of a model's folder, else the model's card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinychat.errors import FieldError, TextError
from tinychat.generate.model_cards import card_of
from tinychat.json_file import read_settings
from tinychat.settings import SETTINGS

FILE, MANIFEST = "generation_config.json", "tinychat.json"


class Advice(dict[str, Any]):
    """Settings by name; `origin` says where they are from."""

    origin = "the model's own"


def own_defaults(folder: Path) -> Advice:
    """Return the settings that a model folder or checkpoint advises, else those of the model's card.

    Values out of range are left out, and all of them where the file says that its model does not sample: transformers
    then ignores them. A limit of new tokens is an example's there, not advice. `TextError` if the file is damaged.
    """
    found = read_settings(folder / FILE)
    advice = Advice() if found.get("do_sample") is False else Advice(usable(found))
    if advice or "do_sample" in found:
        return advice
    card = card_of([folder.name, _source_of(folder)])
    if card is not None:
        advice |= card.values
        advice.origin = f"the card of {card.repository}"
    return advice


def _source_of(folder: Path) -> str:
    try:
        return str(read_settings(folder / MANIFEST).get("source", ""))
    except TextError:
        # Whoever loads the model says that its manifest is damaged.
        return ""


def usable(found: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings in range among values by transformers' keys."""
    values: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if setting.huggingface and setting.huggingface in found:
            try:
                values[name] = setting.check(found[setting.huggingface])
            except FieldError:
                continue
    return values
