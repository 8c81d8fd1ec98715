"""Replies with calls: free text until a call begins, and how calls follow each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.markers import quoted
from tinychat.tools.grammars.rules import Rules

_THINK, _THOUGHT = "<think>", "</think>"
NUMBER, ID = "{number}", "{id}"
"""Stand in a mark for the number and the id of a call."""
PLACEHOLDERS = re.compile(r"(\{number\}|\{id\})")
_WILD = {NUMBER: "/[0-9]{1,3}/", ID: "/[A-Za-z0-9_.:-]{1,64}/"}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The marks around calls: each of them, and all of a reply where they are a section.

    A call stands between `call_begin` and `call_end`, and all calls of a reply between `section_begin` and
    `section_end` where there are such; between two of them is the `separator`. In the beginning of a call ``{number}``
    stands for its number and ``{id}`` for its id.
    """

    section_begin: str = ""
    section_end: str = ""
    call_begin: str = ""
    call_end: str = ""
    separator: str = "\n"

    @property
    def opening(self) -> str:
        """The text by which calls in a reply are found."""
        words = (self.section_begin or self.call_begin).split()
        return words[0].rstrip("[") if words else ""

    @property
    def call_mark(self) -> str:
        """The text that every call begins with: its beginning up to the first id or number."""
        return PLACEHOLDERS.split(self.call_begin)[0]


def any_tool(rules: Rules, choice: ToolChoice) -> str:
    """Return the rule of a call of any of the tools, whose own are named ``tool_NUMBER``."""
    return rules.add("tool", " | ".join(f"tool_{number}" for number in range(len(choice.callable_tools))))


def repeated(choice: ToolChoice, one: str, between: str) -> str:
    """Return calls with a text between them, in Lark; a single one where they are not parallel."""
    return f"{one} ({quoted(between)} {one})*" if choice.is_parallel else one


def wild(rules: Rules, text: str) -> str:
    """Return a text in Lark in which ``{number}`` is any number, and ``{id}`` any id."""
    parts = PLACEHOLDERS.split(text)
    return " ".join(filter(None, (_WILD.get(part) or rules.markers.lark(part) for part in parts)))


def add_reply(rules: Rules, choice: ToolChoice, frame: Frame) -> None:
    """Add the rule of a reply with calls of any of the tools.

    A required call is all of the reply. Otherwise the first marker of a call begins the grammar of calls.
    """
    one = any_tool(rules, choice)
    if frame.section_begin:
        marker, rest = _first_marker(rules, frame.section_begin)
        end = wild(rules, frame.call_end)
        # One terminal: the end of the section may begin as the separator does.
        following = f"({wild(rules, frame.separator + frame.call_begin)} {one} {end})*" if choice.is_parallel else ""
        calls = f"{wild(rules, frame.call_begin)} {one} {end} {following}"
        block = f"{wild(rules, rest)} {calls} {wild(rules, frame.section_end)}"
    else:
        marker, rest = _first_marker(rules, frame.call_begin)
        block = f"{wild(rules, rest)} {one} {wild(rules, frame.call_end)}"
    if choice.required:
        rules.add("call", f"{rules.markers.lark(marker)} {block}")
        rules.add("start", "call" if frame.section_begin else repeated(choice, "call", frame.separator))
    elif rules.markers.is_token(marker):
        _add_behind_token(rules, choice, marker, block)
    else:
        _add_behind_text(rules, choice, marker, block)


def _first_marker(rules: Rules, text: str) -> tuple[str, str]:
    """Return the marker by which a call is found, and the rest of the text that begins it."""
    text = text.lstrip()
    marker = rules.markers.first(text) or text.split(maxsplit=1)[0].partition("{")[0]
    marker = marker.rstrip("[") or marker
    return marker, text.removeprefix(marker)


def _add_behind_token(rules: Rules, choice: ToolChoice, begin: str, block: str) -> None:
    """Add a reply of text and all control tokens, in which the token `begin` begins a call."""
    rules.add("call", f"{rules.markers.lark(begin)} {block}")
    other = rules.markers.others(begin)
    parts = ["TEXT? call"] * choice.is_parallel + [f"TEXT? {other}"] * bool(other)
    many = f"({' | '.join(parts)})* " if parts else ""
    rules.add("start", f"{many}TEXT? {'call?' * (not choice.is_parallel)}")


def _add_behind_text(rules: Rules, choice: ToolChoice, begin: str, block: str) -> None:
    """Add a reply of text and all control tokens, in which the text `begin` begins a call.

    What a model thinks is no call, whatever it says: it is left alone to its end.
    """
    tag, think = quoted(begin), quoted(_THINK)
    rules.add("UNTHOUGHT", f"ANY & ~(ANY {think} ANY)")
    rules.add("FREE", f"TEXT & ~(ANY {tag} ANY) & ~(ANY {think} ANY)")
    rules.add("OPEN", f"UNTHOUGHT {think} ANY")
    rules.add("THOUGHT", f"OPEN {quoted(_THOUGHT)}")
    rules.add("TAGGED", f"(ANY {tag}) & ~(ANY {think} ANY)")
    rules.add("thought", "THOUGHT", "[lazy]")
    rules.add("until_call", "TAGGED", "[lazy]")
    rules.add("call", f"until_call {block}")
    other = rules.markers.others()
    parts = ["thought", *["call"] * choice.is_parallel, *[f"(FREE | OPEN)? {other}"] * bool(other)]
    rules.add("start", f"({' | '.join(parts)})* (FREE | OPEN{' | call' * (not choice.is_parallel)})?")
