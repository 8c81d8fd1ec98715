"""Rules of a grammar in Lark."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.tools.grammars.markers import Markers, quoted

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

    def lark(self) -> str:
        """Return the grammar."""
        return "\n".join(self._lines.values())

    def until(self, name: str, end: str, before: str = "") -> str:
        """Return a rule of any text up to the first `end`, which is a part of it and has `before` in front of it."""
        upper = f"UNTIL_{name.upper()}"
        if self.markers.is_token(end):
            text = self.add(upper, f"ANY {quoted(before)}") if before else "TEXT?"
            return self.add(name, f"{text} {self.markers.lark(end)}")
        self.add(upper, f"(ANY & ~(ANY {quoted(end)} ANY)) {quoted(before)} {quoted(end)}")
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
