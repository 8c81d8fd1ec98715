"""A checkout of tinychat as an engine to be measured, by its public Python alone.

``python -m comparison.public_engine MODEL --threads N --checkout FOLDER [--draft]``
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from comparison.serving import SHORT_PROMPT, run, token_ids


class PublicEngine:
    """A model as `tinychat.load` of the checkout gives it; replies are greedy and end at their length only."""

    def __init__(self, checkout: Path, model: str, threads: int, draft: bool) -> None:
        tinychat = imported_from(checkout)
        self.model = tinychat.load(model, threads=threads, draft=draft)
        self.vocab_size = self.model.vocab_size
        self.version = f"tinychat {tinychat.__version__} of {checkout.name}"

    def decode(self, depth: int, tokens: int) -> float:
        """Return the seconds of one reply after a prompt of `depth` tokens, which it reads first."""
        ids = token_ids(depth, self.vocab_size)
        start = time.perf_counter()
        written = self.model.generate(ids, max_tokens=tokens, ignore_eos=True)
        seconds = time.perf_counter() - start
        assert len(written) == tokens
        return seconds

    def many(self, sequences: int, tokens: int) -> float:
        """Return the seconds of so many replies at once, each after a short prompt of its own."""
        ids = token_ids(sequences * SHORT_PROMPT, self.vocab_size)
        prompts = [ids[start : start + SHORT_PROMPT] for start in range(0, len(ids), SHORT_PROMPT)]
        start = time.perf_counter()
        replies = self.model.generate_many(prompts, sequences, temperature=0.0, max_tokens=tokens, ignore_eos=True)
        seconds = time.perf_counter() - start
        assert [len(reply.token_ids) for reply in replies] == [tokens] * sequences
        return seconds


def imported_from(checkout: Path) -> Any:
    """Return the package tinychat of a checkout, whatever is installed."""
    sys.path.insert(0, str(checkout))
    import tinychat

    if Path(tinychat.__file__).resolve().parents[1] != checkout.resolve():
        sys.exit(f"error: {checkout} has no package tinychat; that of {Path(tinychat.__file__).parent} was found")
    return tinychat


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the public Python of a checkout to the comparison.")
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--draft", action="store_true", help="with drafts, as replies are written by default")
    run(lambda given: PublicEngine(given.checkout, given.model, given.threads, given.draft), parser)
