"""The drafts of the replies that get a token in the same step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from tinychat.generate.drafts import LONGEST, Drafts
from tinychat.generate.run import Run

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine


def proposed_ids(drafts: Drafts | None, runs: Sequence[Run], engine: Engine) -> list[list[int]]:
    """Return the ids that may follow the last token of each run, as far as they pay in one pass."""
    if drafts is None or drafts.begin_step(len(runs)):
        for run in runs:
            run.text = None
        return [[] for _ in runs]
    texts, limits = [], []
    for run in runs:
        if run.text is None:
            run.text = drafts.new_text()
            run.text.begin(run.ids)
        most = LONGEST if run.tokens_left is None else run.tokens_left - 1
        texts.append(run.text)
        limits.append(run.sequence.rows_at_once(most + run.missing) - run.missing)
    rows = sum(run.missing for run in runs)
    drafts.suggest(texts, limits, [run.reply.guess for run in runs], rows, engine.rest)
    counts = drafts.share(texts, rows)
    room = engine.chunk_size - rows
    proposed = []
    for text, count in zip(texts, counts):
        # A text that repeats itself may come to an image.
        offered = takewhile(engine.vocab_size.__gt__, text.suggestion[: min(count, room)])
        proposed.append([*offered])
        room -= len(proposed[-1])
    return proposed
