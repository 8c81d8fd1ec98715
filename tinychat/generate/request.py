"""The settings of a reply, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Unpack

from tinychat.settings import ReplyKeywords, ReplySettings, in_use, names

if TYPE_CHECKING:
    from tinychat.generate.grammar import Constraint

SAMPLING_FIELDS = names("sampling")
"""The fields of `Request` that say how the next token is chosen."""


class RequestFields(ReplyKeywords, total=False):
    """The fields of `Request` as keyword arguments."""

    constraint: Constraint | None


@dataclass(frozen=True, kw_only=True)
class Request(ReplySettings):
    """Settings of a reply: those of `tinychat.settings.ReplySettings`, and a `constraint` that masks tokens.

    `FieldError` if a value is out of range, or of another type.
    """

    constraint: Constraint | None = None

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Token ids and what is added to their logits, as checked."""
        return self.logit_bias  # type: ignore[return-value]

    def values(self) -> dict[str, object]:
        """Return the fields that have any effect by name, but the constraint, which is not a plain value."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "constraint" and in_use(field.name, self)
        }


def as_request(**keywords: Unpack[RequestFields]) -> Request:
    """Return the request of keyword arguments; a `TypeError` names the nearest to an unknown one, and all."""
    known = [field.name for field in fields(Request)]
    for name in keywords:
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            advice = f": did you mean {nearest[0]}?" if nearest else f"; expected one of {', '.join(known)}"
            raise TypeError(f"unknown keyword {name!r}{advice}")
    return Request(**keywords)
