"""Measure replies with the drafts of a smaller model that is right in a share of the tokens, and without drafts.

    .venv/bin/python scripts/measure_draft_model.py tinyllama-1.1b smollm2-135m --right 1 0.7 0
    .venv/bin/python scripts/measure_draft_model.py qwen3.5-0.8b head --right 1 0.7 0

Both models are of random weights, in these shapes (`tinychat bench --random` lists them); `head` is the larger model's
own draft head. The smaller one computes as it always does, but what it chooses is by construction right in a share of
the tokens, drawn anew for each, and wrong in the others. The settings are measured in turns, each reply alone, and each
reply must have the same ids.

stdout has a markdown table and, as its last line, one JSON object with every value.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from tinychat.bench.random_model import write_random_model
from tinychat.engine.sequence import Sequence as TokenSequence
from tinychat.engine.sequence import new_sequence
from tinychat.generate.draft_model import ModelDrafts
from tinychat.generate.drafts import DraftText, Guess
from tinychat.generate.head_drafts import HeadDrafts
from tinychat.generate.loading import load_folder
from tinychat.generate.model import Model
from tinychat.models.shapes import SHAPES, config_of

HEAD = "head"
PROMPT = [5, 17, 99, 1234, 777, 31000, 12, 8]
# Ids below this are in both vocabularies.
WRONG = 30_000


class Constructed(ModelDrafts):
    """Drafts of a model that is right in a share of the tokens of a known reply."""

    def __init__(self, sequence: TokenSequence, vocab_size: int, reply: Sequence[int], share: float) -> None:
        super().__init__(sequence, vocab_size)
        self._reply, self._share, self._random = reply, share, random.Random(1)
        self._done = 0

    def begin(self) -> Constructed:
        """Begin the reply again; what was learnt stays, as in a chat."""
        self._done = 0
        return self

    def suggest(
        self,
        texts: Sequence[DraftText],
        limits: Sequence[int],
        guesses: Sequence[Callable[[], Guess]],
        rows: int,
        rest: Callable[[], None],
    ) -> None:
        """Set the suggestions: see `Drafts.suggest`."""
        super().suggest(texts, limits, [lambda: self._choose], rows, rest)

    def learn(self, text: DraftText, proposed: int, chosen: Sequence[int]) -> None:
        """Count where a suggestion was right."""
        super().learn(text, proposed, chosen)
        self._done += len(chosen)

    def _choose(self, _logits: object, ahead: Sequence[int]) -> int:
        # The first token comes from the prompt.
        token_id = self._reply[min(1 + self._done + len(ahead), len(self._reply) - 1)]
        return token_id if self._random.random() < self._share else (token_id + 1) % WRONG


class ConstructedHead(Constructed, HeadDrafts):
    """The same of a draft head."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[*SHAPES])
    parser.add_argument("smaller", choices=[*SHAPES, HEAD])
    parser.add_argument("--right", type=float, nargs="+", default=[1.0, 0.7, 0.0], help="shares of right tokens")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        larger = load_random(Path(folder, "larger"), asked.model, asked.smaller == HEAD)
        if asked.smaller == HEAD:
            if (head := larger.engine.draft_head) is None:
                parser.error(f"{asked.model} has no draft head")
            head.compile()
            sequence = new_sequence(head, larger.context_size)
        else:
            sequence = load_random(Path(folder, "smaller"), asked.smaller).sequence
        rates, counts = measure(larger, sequence, asked.right, asked.turns, asked.tokens)
    alone = median(rates.pop(None))
    print(f"\n{asked.model} alone: {alone:.1f} tok/s\n")
    print("| right | tok/s | ratio | accepted / drafted |\n|---|---|---|---|")
    found = {share: (median(some), median(some) / alone) for share, some in rates.items()}
    for share, (rate, ratio) in found.items():
        print(f"| {share:g} | {rate:.1f} | {ratio:.2f} | {' / '.join(map(str, counts[share]))} |")
    print(json.dumps({"alone": alone, "with_drafts": {str(share): values for share, values in found.items()}}))


def load_random(folder: Path, name: str, draft_head: bool = False) -> Model:
    """Load a model of random weights in a shape."""
    folder.mkdir()
    print(f"writing {name}", file=sys.stderr)
    return load_folder(write_random_model(config_of(name), folder, draft_head), draft=False)


def measure(
    larger: Model, sequence: TokenSequence, shares: Sequence[float], turns: int, tokens: int
) -> tuple[dict[float | None, list[float]], dict[float, tuple[int, int]]]:
    """Return tokens a second by share of right tokens, None without drafts, and accepted and drafted tokens."""
    reply, _ = timed(larger, tokens)
    rates: dict[float | None, list[float]] = {None: [], **{share: [] for share in shares}}
    counts: dict[float, tuple[int, int]] = {}
    kind = ConstructedHead if sequence.engine.config.is_draft_head else Constructed
    drafts = {share: kind(sequence, larger.vocab_size, reply, share) for share in shares}
    for turn in range(turns):
        for share in rates:
            larger.driver.change_drafts(None if share is None else drafts[share].begin())
            ids, summary = timed(larger, tokens)
            if ids != reply:
                raise SystemExit(f"with {share} right drafts the reply has other ids")
            rates[share].append((tokens - 1) / summary[0])
            if share is not None:
                counts[share] = summary[1:]
            print(f"turn {turn + 1}: right {share}, {rates[share][-1]:.1f} tok/s", file=sys.stderr)
    return rates, counts


def timed(model: Model, tokens: int) -> tuple[list[int], tuple[float, int, int]]:
    """Return the ids of a reply, the seconds behind its first token, and accepted and drafted tokens."""
    stream = model.stream(PROMPT, temperature=1.0, seed=3, max_tokens=tokens, ignore_eos=True)
    next(stream)
    started = perf_counter()
    stream.to_end()
    counted = stream.summary
    return stream.token_ids, (perf_counter() - started, counted.accepted_tokens, counted.drafted_tokens)


if __name__ == "__main__":
    main()
