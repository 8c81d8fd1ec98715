"""What a model's makers advise for sampling: ``generation_config.json`` of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinychat.errors import FieldError
from tinychat.json_file import read_settings
from tinychat.settings import SETTINGS

FILE = "generation_config.json"


def own_defaults(folder: Path) -> dict[str, Any]:
    """Return the settings that a model folder or checkpoint has advice for, by name.

    Values that no sampler could use are left out, and all of them where the file says that its model does not sample:
    transformers then ignores them. A limit of new tokens is an example's there, not advice.

    Raises
    ------
    TextError
        The file is there, but is not a JSON object.
    """
    found = read_settings(folder / FILE)
    return {} if found.get("do_sample") is False else usable(found)


def usable(found: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings that values by transformers' keys stand for, without those out of range."""
    values: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if setting.huggingface and setting.huggingface in found:
            try:
                values[name] = setting.check(found[setting.huggingface])
            except FieldError:
                continue
    return values
