"""Events of a parser of calls: text, the beginning of a call, parts of its arguments."""

from __future__ import annotations

from typing import NamedTuple


class CallText(NamedTuple):
    """Text outside of calls."""

    text: str


class CallBegin(NamedTuple):
    """A call of a tool begins; its number counts the calls of the reply from 0."""

    number: int
    name: str


class CallArguments(NamedTuple):
    """The next part of the arguments of a call: all parts together are a JSON object."""

    number: int
    text: str


class CallThought(NamedTuple):
    """Thoughts beside those of a think section: gpt-oss writes them in the manner of its calls."""

    text: str


CallEvent = CallText | CallBegin | CallArguments | CallThought
