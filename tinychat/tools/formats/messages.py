"""Replies that are a row of messages, each with a header that says whom it is to: thoughts, text, or a call."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tinychat.text.think_sections import beginning_of
from tinychat.tools.events import CallText, CallThought
from tinychat.tools.formats.reading import CallReader, MalformedCall, Steps

START, MESSAGE = "<|start|>", "<|message|>"
_LONGEST_HEADER = 400


class MessageReader(CallReader):
    """Reads the messages of one reply; it begins behind ``<|start|>assistant``."""

    HEADERS: ClassVar[Sequence[str]]  # one of these begins a header
    INNER: ClassVar[Sequence[str]]  # of these, those that end the text of the message before
    ENDS: ClassVar[Sequence[str]]  # behind a message
    RECIPIENT: ClassVar[re.Pattern[str]]  # in the header of a call: the name of its tool
    THOUGHTS: ClassVar[str]  # in the header of thoughts

    @abstractmethod
    def _call_of(self, name: str) -> Steps[None]:
        """Read a call of a tool behind its header."""

    def _read(self) -> Steps[None]:
        while True:
            yield from self._space()
            if not self._text[self._at :]:
                break
            try:
                yield from self._message()
            except MalformedCall as fault:
                if self._text:
                    self.faults.append(f"call {self.count + 1}: {fault}")
                    yield CallText(self._text[:1])
                    self._text, self._at = self._text[1:], 0
                    yield from self._body(CallText)
        if self._text:
            yield CallText(self._text)

    def _message(self) -> Steps[None]:
        """Read a message, which may be a call."""
        if not (yield from self._sees(*self.HEADERS)):
            yield from self._body(CallText)
            return
        header = yield from self._until(MESSAGE, longest=_LONGEST_HEADER)
        yield from self._expect(MESSAGE)
        if recipient := self.RECIPIENT.search(header):
            yield from self._call_of(recipient[1])
            yield from self._next(*self.ENDS)
            self._commit()
            return
        self._commit()
        yield from self._body(CallThought if self.THOUGHTS in header else CallText)

    def _body(self, kind: type[CallText] | type[CallThought]) -> Steps[None]:
        """Pass on the text of a message, from the beginning of what is not certain."""
        self._at = 0
        marks = dict.fromkeys((*self.INNER, *self.ENDS))
        ends = re.compile("|".join(map(re.escape, marks)))
        while (end := ends.search(self._text)) is None:
            unsure = 0 if self._is_last else max(beginning_of(each, self._text) for each in marks)
            if sure := self._text[: len(self._text) - unsure]:
                yield kind(sure)
                self._text = self._text[len(sure) :]
            if self._is_last:
                return
            yield None
        if end.start():
            yield kind(self._text[: end.start()])
        self._text = self._text[end.start() if end[0] in self.INNER else end.end() :]
