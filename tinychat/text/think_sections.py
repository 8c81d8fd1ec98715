"""Telling a model's thinking from its answer while both stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

OPEN, _CLOSE = "<think>", "</think>"
_TAG = re.compile(f"{OPEN}|{_CLOSE}")
# As the chat templates write it that close the section themselves.
CLOSING_TEXT = f"\n{_CLOSE}\n\n"


@dataclass(frozen=True)
class SectionDelta:
    """A delta of a reply, inside or outside of its think section; the tags belong to neither."""

    text: str
    thinking: bool


class ThinkSections:
    """Splits a reply that may begin with ``<think> ... </think>``.

    Only a section at the very beginning counts: later on the same letters are text, as in a reply about tags. But
    behind a section an end without a beginning is none: a model whose thinking was ended for it ends it once more. A
    reply that is `begun` starts inside: the chat template has written the first tag.
    """

    def __init__(self, begun: bool = False) -> None:
        self._pending = ""
        self._state = "thinking" if begun else "start"
        self._after_tag = begun
        self._drops_ends = False
        self._last = "\n"

    @property
    def is_thinking(self) -> bool:
        """Whether the reply so far ends inside its think section."""
        return self._state == "thinking"

    def feed(self, text: str) -> Iterator[SectionDelta]:
        """Yield the parts that are certain after `text`; a possible beginning of a tag is held back."""
        self._pending += text
        if self._state == "start":
            self._begin()
        self._skip_newlines()
        if self._state == "thinking":
            yield from self._think()
            self._skip_newlines()
        if self._state == "answer":
            yield from self._answer()

    def finish(self) -> Iterator[SectionDelta]:
        """Yield the rest."""
        if self._pending:
            yield SectionDelta(self._take(len(self._pending)), thinking=self._state == "thinking")

    def _begin(self) -> None:
        begun = self._pending.lstrip()
        if begun.startswith(OPEN):
            self._pending = begun.removeprefix(OPEN)
            self._state, self._after_tag = "thinking", True
        elif not OPEN.startswith(begun):
            self._state = "answer"

    def _think(self) -> Iterator[SectionDelta]:
        end = self._pending.find(_CLOSE)
        sure = end if end >= 0 else len(self._pending) - beginning_of(_CLOSE, self._pending)
        if sure:
            yield SectionDelta(self._take(sure), thinking=True)
        if end >= 0:
            self._pending = self._pending.removeprefix(_CLOSE)
            self._state, self._after_tag = "answer", True
            self._drops_ends, self._last = True, "\n"

    def _answer(self) -> Iterator[SectionDelta]:
        """Yield the answer without ends of sections that do not begin in it."""
        while self._drops_ends and (tag := _TAG.search(self._pending)):
            begin = tag.start()
            before = self._pending[begin - 1] if begin else self._last
            if tag[0] == OPEN or before == "`":
                self._drops_ends = False
                break
            if begin:
                yield SectionDelta(self._take(begin), thinking=False)
            self._pending = self._pending.removeprefix(_CLOSE)
            self._after_tag = before == "\n"
            self._skip_newlines()
        unsure = max(beginning_of(OPEN, self._pending), beginning_of(_CLOSE, self._pending))
        if sure := len(self._pending) - unsure * self._drops_ends:
            yield SectionDelta(self._take(sure), thinking=False)

    def _skip_newlines(self) -> None:
        if self._after_tag:
            self._pending = self._pending.lstrip("\n")
            self._after_tag = not self._pending

    def _take(self, length: int) -> str:
        taken, self._pending = self._pending[:length], self._pending[length:]
        self._last = taken[-1]
        return taken


def ends_in_thought(text: str, begun: bool = False) -> bool:
    """Return whether a reply ends inside its think section; with `begun` it begins there."""
    sections = ThinkSections(begun)
    for _ in sections.feed(text):
        pass
    return sections.is_thinking


def split_reply(text: str, begun: bool = False) -> tuple[str, str]:
    """Return the thoughts of a whole reply and its answer; with `begun` it begins in its thoughts."""
    sections = ThinkSections(begun)
    parts = [*sections.feed(text), *sections.finish()]
    thoughts, answer = ("".join(part.text for part in parts if part.thinking is kind) for kind in (True, False))
    return thoughts, answer


def split_thoughts(text: str) -> tuple[str, str]:
    """Return the thoughts of a whole reply, without space around them, and its answer.

    A reply whose template has begun them has the end of its section alone.
    """
    tag = _TAG.search(text)
    thoughts, answer = split_reply(text, begun=tag is not None and tag[0] == _CLOSE)
    return thoughts.strip(), answer


def beginning_of(tag: str, text: str) -> int:
    """Return how many characters at the end of `text` may begin `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
