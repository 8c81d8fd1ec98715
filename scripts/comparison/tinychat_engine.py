"""tinychat as an engine to be measured: ``python -m comparison.tinychat_engine FOLDER --threads N [--fixed]``."""

import argparse
import time
from importlib.metadata import version
from pathlib import Path

from comparison.serving import run, token_ids
from tinychat.generate.engine import Engine
from tinychat.generate.loop import prefill
from tinychat.model.loading import load_engine


class TinychatEngine:
    """A model folder, with one cache for each length that is measured."""

    def __init__(self, folder: str, threads: int, fixed: bool) -> None:
        self.folder = Path(folder)
        self.threads = threads
        self.fewest_threads = threads if fixed else 1
        self.version = f"tinychat {version('tinychat')} (numba {version('numba')})"
        self.engines: dict[tuple[str, int], Engine] = {}
        self.vocab_size = self.engine("logits", 1).vocab_size

    def engine(self, use: str, context_size: int) -> Engine:
        """Return the engine that serves one use; all map the same weights."""
        key = use, context_size
        if key not in self.engines:
            self.engines[key] = load_engine(
                self.folder, context_size=context_size, threads=self.threads, fewest_threads=self.fewest_threads
            )
        return self.engines[key]

    def prefill(self, tokens: int) -> float:
        """See `serving.Engine`."""
        engine = self.engine("prefill", tokens)
        ids = token_ids(tokens, self.vocab_size)
        engine.rewind(0)
        start = time.perf_counter()
        prefill(engine, ids)
        return time.perf_counter() - start

    def decode(self, depth: int, tokens: int) -> float:
        """See `serving.Engine`."""
        engine = self.engine("decode", depth + tokens)
        ids = token_ids(depth + tokens, self.vocab_size)
        if depth:
            prefill(engine, ids[:depth])
        engine.rewind(depth)
        start = time.perf_counter()
        for token in ids[depth:]:
            engine.step([token])
        return time.perf_counter() - start

    def logits(self, tokens: int, context_size: int) -> list[float]:
        """See `serving.Engine`."""
        engine = self.engine("logits", context_size)
        engine.rewind(0)
        found, _ = prefill(engine, token_ids(tokens, self.vocab_size))
        return [] if found is None else found.tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve tinychat to the comparison.")
    parser.add_argument("--fixed", action="store_true", help="always as many threads")
    run(lambda arguments: TinychatEngine(arguments.model, arguments.threads, arguments.fixed), parser)
