r"""Formulas in Markdown, shown literally: between ``\(`` and ``\)``, ``\[`` and ``\]``, or dollar signs.

Markdown alone would parse the backslashes as escapes, and underscores as emphasis.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

_CLOSING = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
# As in pandoc, so that prices are no formulas: no space inside the dollar signs, no digit behind them.
_DOLLARS = re.compile(r"\$(?![\s$])[^$`\n]*(?<![\s\\])\$(?!\d)")
_MARK = re.compile(r"\\[()\[\]]")


def add_formulas(parser: MarkdownIt) -> MarkdownIt:
    """Add rules to `parser` that pass formulas through as text, and return it."""
    parser.inline.ruler.before("escape", "formula", _inline_formula)
    # Also inside paragraphs: a line of a formula may look like a heading or a list.
    parser.block.ruler.before(
        "fence", "formula", _block_formula, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    return parser


def _inline_formula(state: StateInline, silent: bool) -> bool:
    """Parse a formula within a line, or a single delimiter, whose pair may not be written yet."""
    end = _end_of_formula(state.src, state.pos, state.posMax)
    if end is None:
        return False
    if not silent:
        for token in _lines_of(state.src[state.pos : end]):
            state.push(token.type, token.tag, 0).content = token.content
    state.pos = end
    return True


def _end_of_formula(text: str, start: int, stop: int) -> int | None:
    closing = _CLOSING.get(text[start : start + 2])
    end = text.find(closing, start + 2, stop) if closing else -1
    if end >= 0:
        return end + 2
    found = _DOLLARS.match(text, start, stop) or _MARK.match(text, start, stop)
    return found.end() if found else None


def _block_formula(state: StateBlock, start: int, stop: int, silent: bool) -> bool:
    r"""Parse lines from one that begins with ``\[`` or ``$$`` to one that ends with the closing delimiter.

    An unfinished formula extends to the end; a blank line ends any formula.
    """
    first = state.getLines(start, start + 1, state.blkIndent, False)
    text = first.strip()
    closing = _CLOSING.get(text[:2])
    if closing not in ("\\]", "$$") or state.is_code_block(start) or closing in text[2:].rstrip()[:-2]:
        return False
    if silent:
        return True
    end = start + 1
    if not (len(text) >= 4 and text.endswith(closing)):
        while end < stop and not state.isEmpty(end):
            end += 1
            if state.getLines(end - 1, end, state.blkIndent, False).rstrip().endswith(closing):
                break
    state.push("paragraph_open", "p", 1).map = [start, end]
    inline = state.push("inline", "", 0)
    # Without content, which the inline rules would parse.
    inline.map, inline.children = [start, end], _lines_of(state.getLines(start, end, state.blkIndent, False).strip())
    state.push("paragraph_close", "p", -1)
    state.line = end
    return True


def _lines_of(formula: str) -> list[Token]:
    """Return a formula as text tokens with line breaks between them."""
    texts = [Token("text", "", 0, content=line) for line in formula.split("\n")]
    return [token for text in texts for token in (Token("softbreak", "br", 0), text)][1:]
