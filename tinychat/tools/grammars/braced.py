"""Grammar of replies with calls whose arguments stand in braces, as Gemma's do."""

from __future__ import annotations

from tinychat.tools.definitions import ToolChoice
from tinychat.tools.grammars.arguments import held_schema
from tinychat.tools.grammars.literals import BracedLiterals
from tinychat.tools.grammars.markers import TEXT_ONLY, Markers, quoted
from tinychat.tools.grammars.replies import Frame, add_reply
from tinychat.tools.grammars.rules import Rules


def braced_grammar(choice: ToolChoice, frame: Frame, quote: str, markers: Markers = TEXT_ONLY) -> str | None:
    """Return the grammar of calls such as ``f{a:<|"|>x<|"|>,n:2}``, texts between two `quote`; None: any text."""
    if not choice.is_constrained:
        return None
    rules = Rules(markers)
    for number, tool in enumerate(choice.callable_tools):
        schema = held_schema(choice, tool)
        literals = BracedLiterals(rules, schema, f"value_{number}", quote)
        members = literals.arguments(f"arguments_{number}", schema, literals.key)
        rules.add(f"tool_{number}", f'{quoted(f"{tool.name}{{")} {members} "}}"')
    add_reply(rules, choice, frame)
    return rules.lark()
