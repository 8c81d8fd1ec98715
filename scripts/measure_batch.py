"""Measure the memory of a long batch, and where its time goes.

    .venv/bin/python scripts/measure_batch.py [MODEL] [--rows 100000] [--tokens 8] [--format jsonl] [--ready]

Rows have prompts of about 30 tokens, and keys and values have `--cache-memory`. Prints the resident memory after each
tenth of the rows, its growth over the second half, and shares of the time from the first row to the last result, by the
clock of the thread that runs the steps: in compiled kernels; in the rest of the engine, which prepares their input; in
the cache, which finds the beginnings that prompts share; in sampling, with the text of the tokens; and the overhead,
all else, which is reading, scheduling and writing. A thread beside the steps runs templates and tokenizers, begins
replies and digests rows: as far as the steps do not wait for it, it only takes cores from the kernels, whose share
grows by it. `--ready` does all of that before the clock starts. `--profile` prints so many functions by the time that
they took themselves; it makes the rest slower.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from time import perf_counter
from typing import Any

from tinychat import cli
from tinychat.commands.batch_results import Outcome, Results
from tinychat.commands.loading import load_model
from tinychat.engine.engine import Engine
from tinychat.engine.sequence import Sequence
from tinychat.generate.idle_sequences import IdleSequences
from tinychat.generate.reply import Reply
from tinychat.kernels.machine_code import EntryPoint
from tinychat.rows import prompts

PLACES = "forest village garden harbour castle meadow island".split()
WHO = "a cat, a dog and an old captain"


class Measurements:
    """Seconds by what they are spent on, and resident memory by the number of results."""

    def __init__(self, rows: int) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(("kernels", "engine", "cache", "sampling"), 0.0)
        self.begun = self.ended = 0.0
        self.memory: list[tuple[int, float]] = []
        self._every = max(1, rows // 10)

    def install(self) -> None:
        """Measure from now on."""
        begin, add, call = Results.begin, Results.add, EntryPoint.__call__

        def noted_begin(results: Results) -> None:
            begin(results)
            self.begun = perf_counter()

        def noted_add(results: Results, outcomes: SequenceOf[Outcome]) -> None:
            add(results, outcomes)
            self.ended = perf_counter()
            if results.done >= self._every * (len(self.memory) + 1):
                self.memory.append((results.done, resident_mib()))
                print(f"{results.done} rows: {self.memory[-1][1]:.1f} MiB", flush=True)

        timed_call = self._timed("kernels", call)

        def of_caller(entry: EntryPoint, thread: int, *arguments: Any) -> bool:
            return bool((call if thread else timed_call)(entry, thread, *arguments))

        Results.begin, Results.add = noted_begin, noted_add  # type: ignore[method-assign, assignment]
        EntryPoint.__call__ = of_caller
        Engine.run = self._timed("engine", Engine.run)  # type: ignore[method-assign]
        Reply.accept_draft = self._timed("sampling", Reply.accept_draft)  # type: ignore[method-assign]
        for part, names in ((Sequence, ("reuse", "insert_prefix")), (IdleSequences, ("take", "put"))):
            for name in names:
                setattr(part, name, self._timed("cache", getattr(part, name)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            started = perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[name] += perf_counter() - started

        return timed

    def make_prompts_first(self) -> None:
        """Make all prompts before the clock starts."""

        def all_made(items: Iterable[Any], _count: int) -> Iterator[Any]:
            made = [*items]
            self.begun = perf_counter()
            yield from made

        prompts.made_ahead = all_made  # type: ignore[attr-defined, assignment]

    def print_shares(self, rows: int) -> None:
        """Print the rate, and the shares of the time."""
        whole = self.ended - self.begun
        kernels, engine, cache, sampling = (seconds / whole for seconds in self.seconds.values())
        print(
            f"{rows / whole:.0f} rows/s; kernels {kernels:.1%}, rest of the engine {engine - kernels:.1%}, "
            f"cache {cache:.1%}, sampling {sampling:.1%}, overhead {1 - engine - cache - sampling:.1%}"
        )


def resident_mib() -> float:
    """Return the resident memory of this process that is its own, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def write_rows(path: Path, count: int) -> None:
    """Write the rows in the format of `path`."""
    rows = ({"id": i, "prompt": f"Tell me story {i} about {WHO} in a {PLACES[i % len(PLACES)]}."} for i in range(count))
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist([*rows]), path)
        return
    with open(path, "w", encoding="utf-8") as file:
        if path.suffix == ".csv":
            file.write("id,prompt\n")
        for row in rows:
            file.write(f'{row["id"]},"{row["prompt"]}"\n' if path.suffix == ".csv" else json.dumps(row) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", metavar="MODEL")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--format", choices=["jsonl", "csv", "parquet"], default="jsonl")
    parser.add_argument("--parallel", type=int)
    parser.add_argument("--cache-memory", default="64M")
    parser.add_argument("--ready", action="store_true")
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    measured = Measurements(options.rows)
    measured.install()
    if options.ready:
        measured.make_prompts_first()
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / f"{name}.{options.format}" for name in ("in", "out"))
        write_rows(source, options.rows)
        command = ["batch", str(source), options.model, "-o", str(target), f"--max-tokens={options.tokens}"]
        command += ["--temperature=0", f"--cache-memory={options.cache_memory}"]
        command += [f"--parallel={options.parallel}"] if options.parallel else []
        profile = cProfile.Profile()
        code = profile.runcall(cli.main, command, load_model) if options.profile else cli.main(command, load_model)
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)
    if code:
        return code
    measured.print_shares(options.rows)
    later = [point for point in measured.memory if point[0] >= options.rows // 2]
    growth = (later[-1][1] - later[0][1]) / max(1, later[-1][0] - later[0][0]) * 100_000
    print(f"memory grows by {growth:.1f} MiB in 100,000 rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
