"""Reading calls while a reply is written: what the parsers of all formats share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

from tinychat.text.think_sections import beginning_of
from tinychat.tools.events import CallArguments, CallBegin, CallEvent, CallText
from tinychat.tools.grammars.replies import Frame
from tinychat.tools.json_object import JsonObject

Result = TypeVar("Result")
Steps = Generator[CallEvent | None, None, Result]
"""Steps of a parser: events as they become certain, None where it needs more text, and at last what was read."""

LONGEST_NAME = 256
_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_NAME = re.compile(r"[\n<>{}]")
# The beginning of an end mark, where a reply was cut behind a call.
_CUT_MARK = re.compile(r"[\s`]*(?:<[^\s>]*)?")


class MalformedCall(Exception):
    """The text read so far does not go on as a call does; the message tells why."""


class CallReader(ABC):
    """Finds the calls of a reply while it is written. Anything that is no call stays text.

    The events do not depend on where the text is split. What begins like a call and is none is text from its beginning.
    Arguments that turn out to be malformed end before that: such a call is not whole, and what follows is text.

    A subclass reads a call between its beginning and its end, or all that follows an opening.
    """

    def __init__(self, form: Frame) -> None:
        self.count = 0  # calls that have begun
        self.ended = 0  # calls whose arguments are whole
        self.faults: list[str] = []  # an account of each call that is malformed, in one line
        self._form = form
        # What is not certain yet, the position in it, and the opening before it that may still be text.
        self._text, self._at, self._held = "", 0, ""
        self._is_last = False
        # Nothing but space has come behind a whole call.
        self._follows_call = False
        self._members = 0
        self._steps = self._read()

    def feed(self, text: str) -> Iterator[CallEvent]:
        """Yield what is certain after the next text."""
        self._text += text
        for event in self._steps:
            if event is None:
                return
            yield event

    def finish(self) -> Iterator[CallEvent]:
        """Yield what was held back: a call that did not begin is text."""
        self._is_last = True
        yield from self.feed("")

    @abstractmethod
    def _call(self) -> Steps[None]:
        """Read a call, with its end."""

    def _calls(self) -> Steps[None]:
        """Read what follows an opening, up to the end of the calls."""
        form = self._form
        begin = form.section_begin or form.call_mark
        yield from self._expect(begin.strip().removeprefix(form.opening))
        if not form.section_begin:
            yield from self._call()
            return
        while not (yield from self._next(form.section_end.strip())):
            self._settle()
            yield from self._next(form.separator.strip())
            yield from self._expect(form.call_mark)
            yield from self._call()

    def _read(self) -> Steps[None]:
        while (yield from self._text_before_calls()):
            yield from self._attempt()
            self._follows_call = not self._held and 0 < self.ended == self.count

    def _attempt(self) -> Steps[None]:
        """Read calls; what turns out to be none is text."""
        try:
            yield from self._calls()
            if self._held:
                raise MalformedCall("it names no tool")
            self._commit()
            yield from self._lines()
        except MalformedCall as fault:
            if self._held or self._text:
                self.faults.append(f"call {self.count + bool(self._held)}: {fault}")
            if self._held:
                yield CallText(self._held)
            self._at = 0

    def _text_before_calls(self) -> Steps[bool]:
        """Read up to an opening, which is held back with the space before it; return False at the end of the text."""
        opening = self._form.opening
        while (begin := self._text.find(opening)) < 0:
            # Space between the text and a call belongs to neither.
            unsure = beginning_of(opening, self._text)
            sure = len(self._text) if self._is_last else len(self._text[: len(self._text) - unsure].rstrip())
            if self._is_last and self._follows_call and _CUT_MARK.fullmatch(self._text):
                return False
            if sure:
                self._follows_call = False
                yield CallText(self._text[:sure])
                self._text = self._text[sure:]
            if self._is_last:
                return False
            yield None
        before, end = self._text[:begin].rstrip(), begin + len(opening)
        if before:
            yield CallText(before)
        self._held, self._text, self._at = self._text[len(before) : end], self._text[end:], 0
        return True

    def _lines(self) -> Steps[None]:
        """Leave out the lines between a call and what follows."""
        while True:
            self._text = self._text.lstrip("\n")
            if self._text or self._is_last:
                return
            yield None

    def _commit(self) -> None:
        """Go on from here: what was read so far is part of a call."""
        self._text, self._at, self._held = self._text[self._at :], 0, ""

    def _settle(self) -> None:
        """Go on between two calls: if the next one is none, it is text from here."""
        if not self._held:
            self._commit()

    def _more(self) -> Steps[None]:
        """Wait for more text."""
        if self._is_last:
            raise MalformedCall("the reply ends in it")
        yield None

    def _space(self) -> Steps[None]:
        """Pass over space, up to other text or the end."""
        while True:
            rest = self._text[self._at :].lstrip()
            self._at = len(self._text) - len(rest)
            if rest or self._is_last:
                return
            yield None

    def _next(self, *texts: str) -> Steps[str]:
        """Take the one of some texts that comes next, behind space; empty if none does."""
        start = self._at
        yield from self._space()
        while True:
            rest = self._text[self._at :]
            if self._is_last or not any(len(rest) < len(text) and text.startswith(rest) for text in texts):
                break
            yield None
        found = max((text for text in texts if rest.startswith(text)), key=len, default="")
        self._at = self._at + len(found) if found else start
        return found

    def _expect(self, text: str) -> Steps[None]:
        """Take a text in which any space, or none, may stand for space."""
        for part in text.split():
            if not (yield from self._next(part)):
                if self._text[self._at :].isspace() or self._at == len(self._text):
                    yield from self._more()
                raise MalformedCall(f"{part} is missing")

    def _until(self, *ends: str, longest: int | None = None) -> Steps[str]:
        """Take the text before the first of some ends, which stays."""
        end = re.compile("|".join(map(re.escape, ends)))
        while (found := end.search(self._text, self._at)) is None:
            if longest is not None and len(self._text) - self._at > longest + max(map(len, ends)):
                break
            yield from self._more()
        if found is None or (longest is not None and found.start() - self._at > longest):
            raise MalformedCall(f"{ends[0]} is missing behind a name")
        taken, self._at = self._text[self._at : found.start()], found.start()
        return taken

    def _name_before(self, *ends: str) -> Steps[str]:
        """Take the name of a tool or an argument."""
        name = (yield from self._until(*ends, longest=LONGEST_NAME)).strip()
        if not name or _NO_NAME.search(name):
            raise MalformedCall("it has no name")
        return name

    def _sees(self, *texts: str) -> Steps[bool]:
        """Return whether one of some texts comes next, behind space."""
        start, found = self._at, (yield from self._next(*texts))
        self._at = start
        return bool(found)

    def _value(self) -> Steps[str]:
        """Take a JSON value; a text may hold escapes that are none."""
        yield from self._space()
        if self._text.startswith('"', self._at):
            while (text := _TEXT.match(self._text, self._at)) is None:
                yield from self._more()
            self._at = text.end()
            return text[0]
        around, value = JsonObject(), ""
        around.feed('{"":')
        while not around.ends_value:
            while self._at == len(self._text):
                yield from self._more()
            added, length = around.feed(self._text[self._at])
            if not length:
                raise MalformedCall("it is no JSON")
            value, self._at = value + added, self._at + 1
        # The end of a number, or of a word, is seen by what follows it.
        if value[-1] in ",}" and (around.status == "whole" or value[-1] == ","):
            value, self._at = value[:-1], self._at - 1
        return value

    def _element(self, quotes: Sequence[str], escapes: bool, ends: str) -> Steps[str]:
        """Take an element of a list up to its comma or the list's end, which stay; both count for nothing in quotes."""
        depth, quote, end = 0, "", self._at
        while True:
            left = len(self._text) - end
            marks = [mark for mark in ([quote] if quote else quotes) if left < len(mark)]
            if left <= 0 or any(mark.startswith(self._text[end:]) for mark in marks):
                yield from self._more()
                continue
            found = next((mark for mark in quotes if self._text.startswith(mark, end)), "")
            character = self._text[end]
            if quote and escapes and character == "\\":
                end += 2
            elif found and quote in ("", found):
                quote, end = "" if quote else found, end + len(found)
            elif quote:
                end += 1
            elif not depth and character in f",{ends}":
                taken, self._at = self._text[self._at : end], end
                return taken
            else:
                depth += (character in "([{") - (character in ")]}")
                end += 1

    def _begin(self, name: str) -> CallBegin:
        """Begin a call: from here on it is no text any more."""
        self._commit()
        self._members = 0
        self.count += 1
        # Half of a pair of surrogates is no text.
        return CallBegin(self.count - 1, name.encode("utf-8", "replace").decode())

    def _object(self) -> Steps[None]:
        """Pass on the arguments of a call that are JSON."""
        arguments = JsonObject()
        yield from self._space()
        while True:
            text, length = arguments.feed(self._text[self._at :])
            self._at += length
            self._commit()
            if text:
                yield CallArguments(self.count - 1, text)
            if arguments.status == "whole":
                self.ended += 1
                return
            if arguments.status == "bad":
                raise MalformedCall("its arguments are no JSON object")
            yield from self._more()

    def _argument(self, key: str, value: object) -> CallArguments:
        """Add an argument to the JSON object of a call."""
        text = f"{', ' if self._members else '{'}{as_json(key)}: {as_json(value)}"
        self._commit()
        self._members += 1
        return CallArguments(self.count - 1, text)

    def _end(self) -> CallArguments:
        """End the JSON object of a call."""
        self._commit()
        self.ended += 1
        return CallArguments(self.count - 1, "}" if self._members else "{}")


def as_json(value: object) -> str:
    """Return a value as JSON that UTF-8 can write: half of a pair of surrogates is an escape.

    `MalformedCall` if JSON has no such value.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise MalformedCall("it has a value that JSON does not know") from None
    return text.encode("utf-8", "backslashreplace").decode()
