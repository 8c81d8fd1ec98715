"""Replies that are a row of messages, each with a header that tells what it is: thoughts, text, or a call."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tinychat.text.think_sections import beginning_of
from tinychat.tools.definitions import ToolChoice
from tinychat.tools.events import CallText, CallThought
from tinychat.tools.formats.reading import CallReader, Steps
from tinychat.tools.grammars.replies import any_tool
from tinychat.tools.grammars.rules import Rules

START, MESSAGE = "<|start|>", "<|message|>"
_LONGEST_HEADER = 400


def add_messages(rules: Rules, choice: ToolChoice, thoughts: str, answer: str, end: str, start: str) -> None:
    """Add the rule of a reply that begins within a header: messages before the last ones, the answer or calls.

    `thoughts` and `answer` are the headers of such messages; each but the last has an `end`, and `start` before the
    next header. Before a required call there are thoughts alone.
    """
    markers, one = rules.markers, any_tool(rules, choice)
    said, between = rules.until("said", end), markers.lark(f"{end}{start}")
    calls = rules.add("calls", f"{one} ({between} {one})*" if choice.is_parallel else one)
    headers = [thoughts] * choice.thinks + [answer] * (not choice.required)
    before = f"(({' | '.join(map(markers.lark, headers))}) {said} {markers.lark(start)})*" if headers else ""
    last = calls if choice.required else f"({calls} | {markers.lark(answer)} TEXT?)"
    ending = "" if markers.is_stop(end) else f"({markers.lark(end)})?"
    rules.add("start", f"{before} {last} {ending}")


class MessageReader(CallReader):
    """Reads the messages of one reply; it begins within the header of the first."""

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
            self._held = ""
            yield from self._attempt()
        if self._text:
            yield CallText(self._text)

    def _calls(self) -> Steps[None]:
        """Read a message, which may be a call; its header is held back until it is certain that it is one."""
        header = yield from self._header()
        if not header:
            yield from self._body(CallText)
            return
        self._hold()
        if recipient := self.RECIPIENT.search(header):
            yield from self._call_of(recipient[1])
            yield from self._next(*self.ENDS)
            return
        self._commit()
        yield from self._body(CallThought if self.THOUGHTS in header else CallText)

    def _header(self) -> Steps[str]:
        """Take the header of a message; empty if it has none."""
        begin = yield from self._next(*self.HEADERS)
        if begin in ("", MESSAGE):
            return begin
        self._hold()
        rest = yield from self._until(MESSAGE, longest=_LONGEST_HEADER)
        yield from self._expect(MESSAGE)
        return begin + rest

    def _hold(self) -> None:
        """Hold back what was read."""
        self._held, self._text, self._at = self._held + self._text[: self._at], self._text[self._at :], 0

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
