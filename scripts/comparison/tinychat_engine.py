"""tinychat as an engine to be measured: ``python -m comparison.tinychat_engine FOLDER --threads N [--fixed]``."""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

from comparison.serving import run, token_ids
from tinychat.engine.loading import load_engine
from tinychat.generate.loop import prefill
from tinychat.generate.sequence import Sequence


class TinychatEngine:
    """A model folder, with one sequence for each length that is measured."""

    def __init__(self, folder: str, threads: int, fixed: bool) -> None:
        self.engine = load_engine(Path(folder), threads=threads, fewest_threads=threads if fixed else 1)
        self.version = f"tinychat {version('tinychat')} (numba {version('numba')})"
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.vocab_size = self.engine.vocab_size

    def sequence(self, use: str, context_size: int) -> Sequence:
        """Return the sequence that serves one use."""
        key = use, context_size
        if key not in self.sequences:
            self.sequences[key] = self.engine.sequence(context_size)
        return self.sequences[key]

    def prefill(self, tokens: int) -> float:
        """See `serving.Engine`."""
        sequence = self.sequence("prefill", tokens)
        ids = token_ids(tokens, self.vocab_size)
        sequence.rewind(0)
        start = time.perf_counter()
        prefill(sequence, ids)
        return time.perf_counter() - start

    def decode(self, depth: int, tokens: int) -> float:
        """See `serving.Engine`."""
        sequence = self.sequence("decode", depth + tokens)
        ids = token_ids(depth + tokens, self.vocab_size)
        if depth:
            prefill(sequence, ids[:depth])
        sequence.rewind(depth)
        start = time.perf_counter()
        for token in ids[depth:]:
            sequence.step([token])
        return time.perf_counter() - start

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """See `serving.Engine`."""
        sequence = self.sequence("logits", context_size)
        sequence.rewind(0)
        found, _ = prefill(sequence, token_ids(tokens, self.vocab_size))
        return [] if found is None else found.tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve tinychat to the comparison.")
    parser.add_argument("--fixed", action="store_true", help="always as many threads")
    run(lambda arguments: TinychatEngine(arguments.model, arguments.threads, arguments.fixed), parser)
