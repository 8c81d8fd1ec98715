"""Settings of several origins, one over the other: flags, the configuration file, the model's own, ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinychat.generate.request import Request

OURS, MODELS_OWN = "tinychat's default", "the model's own"


@dataclass(frozen=True)
class Layer:
    """Values of fields of `Request` by name, and where they are from, in words."""

    origin: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Layered:
    """A request, and for each of its fields where its value is from."""

    request: Request
    origins: Mapping[str, str]


def layered(own: Mapping[str, Any], *layers: Layer) -> Layered:
    """Put layers over each other, the last on top, all of them above the model's own advice and our defaults.

    Raises
    ------
    FieldError
        If a value is out of range.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in (Layer(MODELS_OWN, own), *layers):
        values |= layer.values
        origins |= dict.fromkeys(layer.values, layer.origin)
    return Layered(Request(**values), origins)
