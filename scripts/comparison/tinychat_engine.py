"""tinychat as an engine to measure: ``python -m comparison.tinychat_engine FOLDER --threads N [--fixed] [--kv KV]``."""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

from comparison.serving import SHORT_PROMPT, run, token_ids
from tinychat.engine.loading import load_engine
from tinychat.engine.sequence import Sequence, new_sequence


def read(sequence: Sequence, ids: list[int], start: int = 0) -> list[float]:
    """Run ids from position `start` on, all of them: nothing that an earlier run has left is used."""
    sequence.rewind(start)
    for first in range(start, len(ids), sequence.chunk_size):
        logits = sequence.step(ids[first : first + sequence.chunk_size], len(ids))[-1]
    return logits.tolist()


class TinychatEngine:
    """A model folder, with one sequence for each length that is measured."""

    def __init__(self, folder: str, threads: int, fixed: bool, kv: str | None) -> None:
        self.engine = load_engine(Path(folder), kv=kv, threads=threads, fewest_threads=threads if fixed else 1)
        self.version = f"tinychat {version('tinychat')} (numba {version('numba')})"
        self.sequences: dict[tuple[str, int], Sequence] = {}
        self.vocab_size = self.engine.vocab_size

    def sequence(self, use: str, context_size: int) -> Sequence:
        """Return the sequence that serves one use."""
        key = use, context_size
        if key not in self.sequences:
            self.sequences[key] = new_sequence(self.engine, context_size)
        return self.sequences[key]

    def prefill(self, tokens: int) -> float:
        """See `serving.Engine`."""
        sequence = self.sequence("prefill", tokens)
        ids = token_ids(tokens, self.vocab_size)
        start = time.perf_counter()
        read(sequence, ids)
        return time.perf_counter() - start

    def decode(self, depth: int, tokens: int) -> float:
        """See `serving.Engine`."""
        sequence = self.sequence("decode", depth + tokens)
        ids = token_ids(depth + tokens, self.vocab_size)
        if len(sequence.ids) < depth:
            read(sequence, ids[:depth])
        sequence.rewind(depth)
        logits = sequence.new_logits(1)
        start = time.perf_counter()
        for token in ids[depth:]:
            sequence.step([token], out=logits)
        return time.perf_counter() - start

    def many(self, sequences: int, tokens: int) -> float:
        """See `serving.Engine`."""
        ids = token_ids(sequences * SHORT_PROMPT + tokens, self.vocab_size)
        running = [new_sequence(self.engine, SHORT_PROMPT + tokens) for _ in range(sequences)]
        for i, sequence in enumerate(running):
            read(sequence, ids[i * SHORT_PROMPT : (i + 1) * SHORT_PROMPT])
        logits = self.engine.new_logits(sequences)
        start = time.perf_counter()
        for i, token in enumerate(ids[-tokens:]):
            self.engine.run([sequence.chunk([token], SHORT_PROMPT + i + 1) for sequence in running], logits)
        return time.perf_counter() - start

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """See `serving.Engine`."""
        sequence = self.sequence("logits", context_size)
        return read(sequence, token_ids(tokens, self.vocab_size))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve tinychat to the comparison.")
    parser.add_argument("--fixed", action="store_true", help="always as many threads")
    parser.add_argument("--kv", help="type of the KV cache")
    run(lambda given: TinychatEngine(given.model, given.threads, given.fixed, given.kv), parser)
