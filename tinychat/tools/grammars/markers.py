"""Markers of calls in grammars: control tokens where a vocabulary has them, text elsewhere."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tinychat.text.guard import spelling_pattern

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer


def quoted(text: str) -> str:
    """Return a text as a terminal of Lark."""
    return json.dumps(text, ensure_ascii=False)


class Markers:
    """The control tokens of a vocabulary, as grammars name them; `control` has their ids by spelling.

    Those of `stop_ids` end a reply: a grammar never names them, a reply may have them wherever it may end.
    """

    def __init__(self, control: Mapping[str, int] | None = None, stop_ids: Collection[int] = ()) -> None:
        self._ids = {text: number for text, number in (control or {}).items() if number not in stop_ids}
        self._stops = {text for text, number in (control or {}).items() if number in stop_ids}
        self._spellings = spelling_pattern([*self._ids])

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, stop_ids: Collection[int]) -> Markers:
        """Return the markers of a model's vocabulary."""
        control = {
            text: number
            for text, number in tokenizer.added_tokens.items()
            if number in tokenizer.special_ids and number < vocab_size
        }
        return cls(control, stop_ids)

    def is_token(self, text: str) -> bool:
        """Return whether a text is one control token that is no stop token."""
        return text in self._ids

    def is_stop(self, text: str) -> bool:
        """Return whether a text is a token that ends the reply."""
        return text in self._stops

    def lark(self, text: str) -> str:
        """Return a text in Lark, its control tokens as such; nothing for an empty one."""
        parts, at = [], 0
        for found in self._spellings.finditer(text):
            parts += [quoted(text[at : found.start()]), f"<[{self._ids[found[0]]}]>"]
            at = found.end()
        return " ".join(part for part in [*parts, quoted(text[at:])] if part != '""')

    def first(self, text: str) -> str:
        """Return the control token with which a text begins; nothing if it begins with none."""
        found = self._spellings.match(text)
        return found[0] if found else ""

    def others(self, *texts: str) -> str:
        """Return the control tokens but `texts` and the stop tokens, in Lark; nothing if there are none."""
        ids = sorted(number for text, number in self._ids.items() if text not in texts)
        return f"<[{','.join(_ranges(ids))}]>" if ids else ""


def _ranges(ids: Iterable[int]) -> Iterable[str]:
    """Yield rising ids as ranges of neighbours."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    for run in runs:
        yield f"{run[0]}-{run[-1]}"


TEXT_ONLY = Markers()
"""A vocabulary without control tokens: every marker is text."""
