"""Tokens that mark thoughts: those of models that write other ones than ``<think>`` and ``</think>``.

A reply has the two tags in their place, so that everything behind the tokens knows one way only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tinychat.text.think_sections import CLOSING_TEXT, OPEN


class Mark(Enum):
    """The beginning of thoughts, of the answer, of a header, of what a header is for, of thoughts with a name."""

    THOUGHTS, ANSWER, HEADER, BODY, NAMED = range(5)


@dataclass(frozen=True)
class ThoughtMarks:
    """The marks of one vocabulary."""

    opening: str  # begins thoughts at the beginning of a reply, in a chat template's text
    closing: str  # ends them there
    before_answer: str  # begins a reply without thoughts
    tokens: Mapping[str, Mark]
    ids: Mapping[str, int] = field(default_factory=dict)  # of these tokens
    thoughts_on: bytes = b"analysis"  # in the header of a message of thoughts
    first_header: bytes = b""  # begins the header that a reply begins in; empty where a mark begins it

    @property
    def by_id(self) -> dict[int, Mark]:
        """The marks by their ids."""
        return {self.ids[token]: mark for token, mark in self.tokens.items()}

    @property
    def openings(self) -> list[str]:
        """The tokens that begin thoughts, none where replies are messages with headers."""
        begins = (Mark.THOUGHTS, Mark.NAMED)
        return [] if self.before_answer else [token for token, mark in self.tokens.items() if mark in begins]


def thought_marks_of(added_tokens: Mapping[str, int], special_ids: frozenset[int]) -> ThoughtMarks | None:
    """Return the marks among a vocabulary's added tokens; None where thoughts are plain text."""
    for known in _KNOWN:
        if not known.tokens.keys() <= added_tokens.keys():
            continue
        ids = {token: added_tokens[token] for token in known.tokens}
        if OPEN in ids and special_ids.isdisjoint(ids.values()):
            continue
        return replace(known, ids=ids)
    return None


def _pair(opening: str, closing: str) -> ThoughtMarks:
    return ThoughtMarks(opening, closing, "", {opening: Mark.THOUGHTS, closing: Mark.ANSWER})


_KNOWN = (
    # Mistral's, Cohere's, Seed's and the Swiss AI Initiative's (Apertus).
    _pair("[THINK]", "[/THINK]"),
    _pair("<|START_THINKING|>", "<|END_THINKING|>"),
    _pair("<seed:think>", "</seed:think>"),
    _pair("<|inner_prefix|>", "<|inner_suffix|>"),
    # Gemma 4
    ThoughtMarks("<|channel>thought\n", "<channel|>", "", {"<|channel>": Mark.NAMED, "<channel|>": Mark.ANSWER}),
    # gpt-oss (https://github.com/openai/harmony); what comes behind the end of a message is the header of the next one.
    ThoughtMarks(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        "<|channel|>final<|message|>",
        {**dict.fromkeys(("<|start|>", "<|channel|>", "<|end|>"), Mark.HEADER), "<|message|>": Mark.BODY},
    ),
    # Muse Glimmer: a reply begins behind the role, whom the message is to is the first that the model writes.
    ThoughtMarks(
        " to=self<|message|>",
        "<|eom|><|start|>assistant to=user<|message|>",
        " to=user<|message|>",
        {**dict.fromkeys(("<|start|>", "<|eom|>"), Mark.HEADER), "<|message|>": Mark.BODY},
        thoughts_on=b"to=self",
        first_header=b" to=",
    ),
    # Solar Open
    ThoughtMarks(
        "<|think|>",
        "<|end|><|begin|>assistant<|content|>",
        "<|content|>",
        {
            **dict.fromkeys(("<|begin|>", "<|end|>"), Mark.HEADER),
            "<|think|>": Mark.THOUGHTS,
            "<|content|>": Mark.ANSWER,
        },
    ),
    # Inkling: a message without a mark of its content is text.
    ThoughtMarks(
        "<|content_thinking|>",
        "<|end_message|><|message_model|><|content_text|>",
        "<|content_text|>",
        {
            "<|end_message|>": Mark.HEADER,
            "<|content_thinking|>": Mark.THOUGHTS,
            **dict.fromkeys(("<|message_model|>", "<|content_text|>"), Mark.ANSWER),
        },
    ),
    # Where the tags are control tokens.
    ThoughtMarks(OPEN, CLOSING_TEXT, "", {OPEN: Mark.THOUGHTS, "</think>": Mark.ANSWER}),
)
