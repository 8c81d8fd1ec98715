"""How the next token is chosen, as plain numbers that are checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from tinychat.errors import SettingError


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingSettings` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of the sampler, applied in this order: penalty, temperature, top-k, top-p, min-p.

    Attributes
    ----------
    temperature : float
        Divides the logits; 0 always takes the most likely token.
    top_k : int
        Keep the `top_k` most likely tokens; 0 keeps all.
    top_p : float
        Keep the fewest most likely tokens whose probabilities reach `top_p`; 1 keeps all.
    min_p : float
        Drop tokens below `min_p` times the most likely one's probability; 0 keeps all.
    repeat_penalty : float
        Divides positive and multiplies negative logits of recent tokens; 1 changes nothing.
    repeat_last_n : int
        How many recent tokens the penalty looks at; 0 for none.
    seed : int, optional
        The same seed gives the same tokens; None draws one.

    Raises
    ------
    SettingError
        If a value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.01, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repeat_penalty", self.repeat_penalty, 0.01, 100.0)
        _check_integer("top_k", self.top_k, "0 (all tokens) or more")
        _check_integer("repeat_last_n", self.repeat_last_n, "0 (no tokens) or more")
        if self.seed is not None:
            _check_integer("seed", self.seed, "0 or more")


def _check_number(name: str, value: float, low: float, high: float) -> None:
    # Written so that NaN, which compares false with everything, is refused too.
    if not low <= value <= high:
        raise _out_of_range(name, value, f"between {low:g} and {high:g}")


def _check_integer(name: str, value: int, wanted: str) -> None:
    if not isinstance(value, int) or value < 0:
        raise _out_of_range(name, value, wanted)


def _out_of_range(name: str, value: object, wanted: str) -> SettingError:
    return SettingError(f"--{name.replace('_', '-')} ({name}) must be {wanted}, not {value}")
