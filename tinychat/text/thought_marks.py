"""Tokens that mark thoughts: those of models that write other ones than ``<think>`` and ``</think>``.

A reply has the two tags in their place, so that everything behind the tokens knows one way only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tinychat.text.think_sections import CLOSING_TEXT, OPEN


class Mark(Enum):
    """The beginning of thoughts, of the answer, of a header, of what a header is for, of thoughts with a name."""

    THOUGHTS, ANSWER, HEADER, BODY, NAMED = range(5)


@dataclass(frozen=True)
class ThoughtMarks:
    """The marks of one vocabulary.

    Attributes
    ----------
    closing : str
        What ends thoughts, in a chat template's text.
    before_answer : str
        What a reply without thoughts begins with.
    by_id : mapping of int to a mark
    opening : mapping of str to int
        The tokens that begin thoughts, but for models whose replies are messages with headers.
    """

    closing: str
    before_answer: str
    by_id: Mapping[int, Mark]
    opening: Mapping[str, int]


def thought_marks_of(added_tokens: Mapping[str, int], special_ids: frozenset[int]) -> ThoughtMarks | None:
    """Return the marks among a vocabulary's added tokens; None where thoughts are plain text."""
    for closing, before_answer, marks in _KNOWN:
        if not marks.keys() <= added_tokens.keys():
            continue
        by_id = {added_tokens[token]: mark for token, mark in marks.items()}
        if OPEN in marks and special_ids.isdisjoint(by_id):
            continue
        begins = [token for token, mark in marks.items() if mark in (Mark.THOUGHTS, Mark.NAMED) and not before_answer]
        return ThoughtMarks(closing, before_answer, by_id, {token: added_tokens[token] for token in begins})
    return None


def _pair(opening: str, closing: str) -> tuple[str, str, dict[str, Mark]]:
    return closing, "", {opening: Mark.THOUGHTS, closing: Mark.ANSWER}


# By the text that ends thoughts and the one before an answer without thoughts.
_KNOWN = (
    # Mistral's, Cohere's, Seed's and the Swiss AI Initiative's (Apertus).
    _pair("[THINK]", "[/THINK]"),
    _pair("<|START_THINKING|>", "<|END_THINKING|>"),
    _pair("<seed:think>", "</seed:think>"),
    _pair("<|inner_prefix|>", "<|inner_suffix|>"),
    # Gemma 4
    ("<channel|>", "", {"<|channel>": Mark.NAMED, "<channel|>": Mark.ANSWER}),
    # gpt-oss (https://github.com/openai/harmony)
    (
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
        {"<|start|>": Mark.HEADER, "<|channel|>": Mark.HEADER, "<|message|>": Mark.BODY},
    ),
    # Solar Open
    (
        "<|end|><|begin|>assistant<|content|>",
        "<|content|>",
        {"<|begin|>": Mark.HEADER, "<|think|>": Mark.THOUGHTS, "<|content|>": Mark.ANSWER},
    ),
    # Where the tags are control tokens.
    (CLOSING_TEXT, "", {OPEN: Mark.THOUGHTS, "</think>": Mark.ANSWER}),
)
