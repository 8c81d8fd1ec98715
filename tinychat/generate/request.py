"""All that a reply depends on beside its prompt, as one object that is checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict

from tinychat.errors import FieldError

if TYPE_CHECKING:
    from tinychat.generate.grammar import Constraint

# Lowest and highest value, both allowed.
_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.01, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
}
_INTEGERS: Mapping[str, tuple[int, str]] = {
    "top_k": (0, "0 (all tokens) or more"),
    "repeat_last_n": (0, "0 (no tokens) or more"),
    "seed": (0, "0 or more"),
    "max_tokens": (1, "1 or more"),
    "logprobs": (0, "0 or more"),
    "think_budget": (0, "0 or more"),
}
_MAY_BE_NONE = ("seed", "max_tokens", "logprobs", "think_budget")

SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed")
"""The fields of `Request` that say how the next token is chosen."""


class RequestFields(TypedDict, total=False):
    """The fields of `Request` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    seed: int | None
    max_tokens: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    logprobs: int | None
    think_budget: int | None
    constraint: Constraint | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a reply is written: sampling, what ends it, what is reported of it.

    The sampler applies its settings in this order: constraint, penalty, temperature, top-k, top-p, min-p.

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
    max_tokens : int, optional
        Most new tokens; None for as many as the context holds.
    stop : tuple of str
        Texts that end the reply and are not part of it. May be given as one text or any sequence of texts.
    ignore_eos : bool
        Treat the model's own stop tokens as ordinary tokens.
    logprobs : int, optional
        Report each token's log-probability and this many of the most likely ones, from the model's own logits:
        before penalty, temperature, filters and constraint. None reports nothing.
    think_budget : int, optional
        Most tokens of a think section; then its end marker comes. None for as many as the model likes; a constraint,
        which leaves no room for such a section, has it ignored.
    constraint : Constraint, optional
        Tokens that it forbids are masked before the sampler sees the logits.

    Raises
    ------
    FieldError
        If a value is out of range, or of another type.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    think_budget: int | None = None
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _NUMBERS.items():
            self._set(name, _number(name, getattr(self, name), low, high))
        for name, (least, wanted) in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_BE_NONE:
                self._set(name, _integer(name, value, least, wanted))
        self._set("stop", _texts("stop", self.stop))

    def values(self) -> dict[str, object]:
        """Return all fields by name but the constraint, which is not a plain value."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "constraint"}

    def _set(self, name: str, value: object) -> None:
        # The usual way for a frozen dataclass to bring its own fields into one form.
        object.__setattr__(self, name, value)


def _number(name: str, value: Any, low: float, high: float) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise FieldError(name, f"must be a number, not {value!r}")
    # Written so that NaN, which compares false with everything, is refused too.
    if not low <= value <= high:
        raise FieldError(name, f"must be between {low:g} and {high:g}, not {value}")
    return float(value)


def _integer(name: str, value: object, least: int, wanted: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        kind = "a whole number or none" if name in _MAY_BE_NONE else "a whole number"
        raise FieldError(name, f"must be {kind}, not {value!r}")
    if value < least:
        raise FieldError(name, f"must be {wanted}, not {value}")
    return int(value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    # A single text is one stop text, not one for each letter.
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise FieldError(name, "must be a text or a list of texts")
    if "" in texts:
        raise FieldError(name, "must not be empty: an empty text would end every reply at once")
    return tuple(texts)
