"""Rules of a grammar in Lark, and those that all formats of calls share: free text, members in any order."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.markers import Markers, quoted

THINK, THOUGHT = "<think>", "</think>"
# A rule's parameter has 64 bits, one for each member.
_MOST_MEMBERS = 60


class Rules:
    """The rules of one grammar; `markers` are those of its vocabulary."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self._lines = {"ANY": "ANY: /(.|\\n)*/", "TEXT": "TEXT: /(.|\\n)+/"}

    def add(self, name: str, body: str, options: str = "") -> str:
        """Add a rule, once; return its name."""
        self._lines.setdefault(name, f"{name}{options}: {body}")
        return name

    def has(self, name: str) -> bool:
        """Return whether there is a rule of this name."""
        return name in self._lines

    def lark(self) -> str:
        """Return the grammar."""
        return "\n".join(self._lines.values())

    def until(self, name: str, end: str, before: str = "") -> str:
        """Return a rule of any text up to the first `end`, which is a part of it and has `before` in front of it."""
        if self.markers.is_token(end):
            return self.add(name, f"TEXT? {quoted(before)} {self.markers.lark(end)}")
        upper = self.add(f"UNTIL_{name.upper()}", f"(ANY & ~(ANY {quoted(end)} ANY)) {quoted(before)} {quoted(end)}")
        return self.add(name, upper, "[lazy]")

    def members(self, name: str, members: Sequence[tuple[str, bool]], between: str = "") -> str:
        """Add a rule of members in any order, each once at most, with `between` in Lark between them.

        `members` are pairs of a member in Lark and whether it is required.
        """
        needed = [member for member, is_required in members if is_required]
        optional = [member for member, is_required in members if not is_required]
        if not members:
            return self.add(name, '""')
        if len(members) > _MOST_MEMBERS:
            one = self.add(f"{name}_one", " | ".join([*needed, *optional]))
            return self.add(name, f"({one} ({between} {one})*)?")
        # The parameter has a bit for each member that has come, those of the required ones first.
        end = f'"" %if is_ones([0:{len(needed)}])' if needed else '""'
        following = [
            f"{member} {name}_rest::set_bit({bit}) %if bit_clear({bit})"
            for bit, member in enumerate([*needed, *optional])
        ]
        self.add(f"{name}_next", " | ".join(following), "::_")
        self.add(f"{name}_rest", f"{end} | {between} {name}_next::_", "::_")
        return self.add(name, f"{name}_next::0x0" if needed else f'"" | {name}_next::0x0')


def add_reply(rules: Rules, choice: ToolChoice, begin: str, block: str, between: str | None) -> None:
    """Add the rule of a reply whose calls are behind the marker `begin`.

    Parameters
    ----------
    rules : Rules
    choice : ToolChoice
    begin : str
    block : str
        What follows `begin`, in Lark.
    between : str, optional
        Text between two blocks; None where one block has all calls of a reply.
    """
    if choice.required:
        more = "" if between is None or not choice.is_parallel else f" ({quoted(between)} call)*"
        rules.add("call", f"{rules.markers.lark(begin)} {block}")
        rules.add("start", f"call{more}")
    elif rules.markers.is_token(begin):
        _add_behind_token(rules, choice, begin, block)
    else:
        _add_behind_text(rules, choice, begin, block)


def _add_behind_token(rules: Rules, choice: ToolChoice, begin: str, block: str) -> None:
    """Add a reply of text and all control tokens, in which the token `begin` begins a call."""
    rules.add("call", f"{rules.markers.lark(begin)} {block}")
    other = rules.markers.others(begin)
    parts = ["TEXT? call"] * choice.is_parallel + [f"TEXT? {other}"] * bool(other)
    repeated = f"({' | '.join(parts)})* " if parts else ""
    rules.add("start", f"{repeated}TEXT? {'call?' * (not choice.is_parallel)}")


def _add_behind_text(rules: Rules, choice: ToolChoice, begin: str, block: str) -> None:
    """Add a reply of text and all control tokens, in which the text `begin` begins a call.

    What a model thinks is no call, whatever it says: it is left alone to its end.
    """
    tag, think = quoted(begin), quoted(THINK)
    rules.add("UNTHOUGHT", f"ANY & ~(ANY {think} ANY)")
    rules.add("FREE", f"TEXT & ~(ANY {tag} ANY) & ~(ANY {think} ANY)")
    rules.add("OPEN", f"UNTHOUGHT {think} ANY")
    rules.add("THOUGHT", f"OPEN {quoted(THOUGHT)}")
    rules.add("TAGGED", f"(ANY {tag}) & ~(ANY {think} ANY)")
    rules.add("thought", "THOUGHT", "[lazy]")
    rules.add("until_call", "TAGGED", "[lazy]")
    rules.add("call", f"until_call {block}")
    other = rules.markers.others()
    parts = ["thought", *["call"] * choice.is_parallel, *[f"(FREE | OPEN)? {other}"] * bool(other)]
    rules.add("start", f"({' | '.join(parts)})* (FREE | OPEN{' | call' * (not choice.is_parallel)})?")
