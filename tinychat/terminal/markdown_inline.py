"""Inline Markdown as programmers write it: operators, dunder names, images, links, breaks in table cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

LINK_STYLE = "link_url"
"""The tag of tokens around a URL."""

# Bounded: each underscore of a text is tried.
_DUNDER = re.compile(r"__[A-Za-z0-9]\w{0,80}?__(?!\w)")
_ASTERISKS = re.compile(r"\*+")
# The last letter before scripts that write words without spaces, or particles behind a bold word.
_LAST_OF_SPACED_SCRIPTS = "\u052f"
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_IMAGE = "🌆"
_CELLS = ("td_open", "th_open")


def add_operators(parser: MarkdownIt) -> MarkdownIt:
    """Add a rule to `parser` that passes asterisks within words and names as ``__init__`` through, and return it."""
    parser.inline.ruler.before("emphasis", "operator", _operator)
    return parser


def adapt_inline(tokens: Sequence[Token]) -> None:
    """Adapt inline tokens to terminals, in place.

    Line ends become breaks, since models break verses and addresses without Markdown's two spaces. Images become their
    names and URLs. ``<br>`` in a table cell breaks the line.
    """
    for before, token in zip(chain([None], tokens), tokens):
        if token.children:
            children = [*_with_breaks(token.children)] if before and before.type in _CELLS else token.children
            token.children = [*_adapted(children)]


def _operator(state: StateInline, silent: bool) -> bool:
    found = _text_of_operator(state.src, state.pos, state.posMax)
    if found and not silent:
        state.pending += found
    state.pos += len(found)
    return bool(found)


def _text_of_operator(text: str, start: int, stop: int) -> str:
    before = text[start - 1] if start else " "
    if found := _DUNDER.match(text, start, stop):
        return "" if _is_of_word(before) else found[0]
    found = _ASTERISKS.match(text, start, stop)
    if found is None or found.end() == stop:
        return ""
    after = text[found.end()]
    is_within = (_is_of_word(before) or before in ")]") and (_is_of_word(after) or after == "(")
    return found[0] if is_within else ""


def _is_of_word(letter: str) -> bool:
    return letter == "_" or (letter.isalnum() and letter <= _LAST_OF_SPACED_SCRIPTS)


def _with_breaks(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        if token.type != "text":
            yield token
            continue
        first, *others = _BREAK.split(token.content)
        yield _text(first.rstrip(" ") if others else first)
        for part in others:
            yield Token("hardbreak", "br", 0)
            yield _text(part.lstrip(" "))


def _adapted(tokens: Sequence[Token]) -> Iterator[Token]:
    begin = 0
    while begin < len(tokens):
        token = tokens[begin]
        end = begin + 1
        if token.type == "softbreak":
            yield Token("hardbreak", "br", 0)
        elif token.type == "image":
            yield from _image(token)
        elif token.type == "link_open":
            end = _after(tokens, begin, "link_close")
            yield from _link(tokens[begin:end])
        else:
            yield token
        begin = end


def _after(tokens: Sequence[Token], begin: int, kind: str) -> int:
    return next(index for index in range(begin, len(tokens)) if tokens[index].type == kind) + 1


def _image(token: Token) -> Iterator[Token]:
    name = _plain(token.children or ())
    yield _text(f"{_IMAGE} {name} (" if name else f"{_IMAGE} (")
    yield from _address(str(token.attrs.get("src", "")))
    yield _text(")")


def _link(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield a link; if its text is its URL, the URL alone."""
    link, inner = tokens[0], tokens[1:-1]
    address, name = str(link.attrs.get("href", "")), _plain(inner)
    is_text = all(token.type == "text" for token in inner)
    if link.markup == "autolink" or (is_text and name in (address, address.removeprefix("mailto:"))):
        yield from _address(name)
    else:
        yield link
        yield from _adapted(inner)
        yield tokens[-1]


def _address(address: str) -> Iterator[Token]:
    yield Token(f"{LINK_STYLE}_open", LINK_STYLE, 1)
    yield _text(address)
    yield Token(f"{LINK_STYLE}_close", LINK_STYLE, -1)


def _plain(tokens: Sequence[Token]) -> str:
    return "".join(
        " " if token.type.endswith("break") else _plain(token.children or ()) or token.content for token in tokens
    )


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)
