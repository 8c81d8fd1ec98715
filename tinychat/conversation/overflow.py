"""Policies for a full context: long replies are shortened, then the oldest turns dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Literal, cast

from tinychat.conversation.messages import Message, exchanges
from tinychat.settings import SETTINGS

if TYPE_CHECKING:
    from tinychat.generate.model import Model

OverflowPolicy = Literal["stop", "drop", "shift", "summarise"]
"""stop: the reply ends; drop: long replies are shortened, then the oldest exchanges go, and the rest is read again;
shift: the oldest exchanges are cut out of the cache; summarise: the model's own summary replaces them before a message
is answered, in mid-reply they are dropped."""

_NAMED_TURNS = 3
# A reply that begins with less room would be cut in its first sentence.
_LEAST_ROOM = 64
# A reply is long that takes more than one in so many parts of the context. One in so many of each of its ends stays.
_LONG, _SHORT = 4, 32
_LEFT_OUT = "\n[...]\n"
# Sizes of contexts that are advised.
_ROUND_SIZE = 1024


def as_policy(name: str) -> OverflowPolicy:
    """Return the policy of this name."""
    return cast(OverflowPolicy, SETTINGS["overflow"].check(name))


def begins_full(length: int, context_size: int) -> bool:
    """Return whether a prompt of `length` tokens leaves too little room for a reply."""
    return length + min(_LEAST_ROOM, context_size // 8) > context_size


def fills(reply_length: int, context_size: int) -> bool:
    """Return whether the reply itself leaves no room in a context."""
    return reply_length > context_size - reply_length


def end_of(reply: Sequence[int], context_size: int) -> Sequence[int]:
    """Return the last ids of a reply that is too long for the model to continue all of it."""
    return reply[-(context_size // _LONG) :] if fills(len(reply), context_size) else reply


def long_replies(model: Model, messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the replies that the model sees whole and that are long for its context, the longest first."""
    whole = [message for message in messages if message.role == "assistant" and message.shortened is None]
    lengths = [(len(model.encode(message.content, add_bos=False)), message) for message in whole]
    for length, message in sorted(lengths, key=lambda one: -one[0]):
        if _LONG * length > model.context_size:
            yield message


def without_middle(model: Model, text: str) -> str:
    """Return the beginning and the end of a text."""
    ids, count = model.encode(text, add_bos=False), max(model.context_size // _SHORT, 1)
    return f"{model.decode(ids[:count])}{_LEFT_OUT}{model.decode(ids[-count:])}"


def drop_oldest(
    render: Callable[[int], list[int]], first: int, messages: Sequence[Message], context_size: int
) -> tuple[int, list[int]]:
    """Leave out whole exchanges until a quarter of the context is free, or only the last one remains.

    A quarter, since each time costs reading the rest again. `render` returns the token ids of the conversation from a
    message on, `first` is the oldest message that is not dropped yet; returns the new one and its ids.
    """
    ids = render(first)
    for begin in exchanges(messages):
        if begin > first and 4 * len(ids) > 3 * context_size:
            first, ids = begin, render(begin)
    return first, ids


def way_out(needed: int, trained_length: int, remedy: str) -> str:
    """Return the advice for a chat whose `needed` tokens do not fit; `remedy` helps beside a larger context."""
    if needed > trained_length:
        return f"{remedy} (the model was trained on {trained_length} tokens at most)"
    size = min(-(-(needed + _LEAST_ROOM) // _ROUND_SIZE) * _ROUND_SIZE, trained_length)
    return f"{remedy}, or make the context larger with /set context {size}"


def how_full(used: int, context_size: int) -> str:
    """Return the use of a context in words; a conversation may have more than a smaller context holds."""
    if used > context_size:
        return f"the conversation takes {used} tokens, {used - context_size} more than the context of {context_size}"
    return f"{used} of {context_size} tokens in use, {context_size - used} left"


def shortening_notice(count: int, used: int, context_size: int) -> str:
    """Return the notice that the model sees parts of long replies only."""
    replies = "a long reply" if count == 1 else f"{count} long replies"
    return (
        f"the context is full: the model sees only the beginning and the end of {replies}; "
        f"{how_full(used, context_size)}"
    )


def dropped_notice(
    dropped: Sequence[Message], used: int, context_size: int, verb: str = "the model no longer sees"
) -> str:
    """Return the notice that turns were dropped, or of another `verb`, with the room that there is now."""
    questions = [message.shown for message in dropped if message.role == "user"]
    named = ", ".join(f'"{shorten(question, 40, placeholder="...")}"' for question in questions[:_NAMED_TURNS])
    more = f" and {len(questions) - _NAMED_TURNS} more" if len(questions) > _NAMED_TURNS else ""
    turns = "turn" if len(questions) == 1 else f"{len(questions)} turns"
    return f"the context is full: {verb} the oldest {turns} ({named}{more}); {how_full(used, context_size)}"
