"""What a model's makers advise for sampling: ``generation_config.json`` of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tinychat.errors import FieldError
from tinychat.generate.request import Request
from tinychat.json_file import read_settings

FILE = "generation_config.json"

# Our fields by the keys of transformers (huggingface/transformers, generation/configuration_utils.py), and one that
# only GGUF files have. A limit of new tokens is left out: it is an example's there, not advice.
_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
}


def own_defaults(folder: Path) -> dict[str, float]:
    """Return the fields of `Request` that a model folder or checkpoint has advice for, by name.

    Values that no sampler could use are left out, and all of them where the file says that its model does not sample:
    transformers then ignores them.

    Raises
    ------
    TextError
        The file is there, but is not a JSON object.
    """
    found = read_settings(folder / FILE)
    return {} if found.get("do_sample") is False else usable(found)


def usable(found: Mapping[str, object]) -> dict[str, float]:
    """Return the fields of `Request` that values by transformers' keys stand for, without those out of range."""
    fields: dict[str, float] = {}
    for key, name in _KEYS.items():
        value = found.get(key)
        if isinstance(value, int | float):
            try:
                Request(**{name: value})  # type: ignore[arg-type]
            except FieldError:
                continue
            fields[name] = value
    return fields
