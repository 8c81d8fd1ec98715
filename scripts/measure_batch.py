"""Measure the memory of a long batch, and the share of its time that is not the model's.

    .venv/bin/python scripts/measure_batch.py [MODEL] [--rows 100000] [--tokens 8] [--format jsonl] [--profile 30]

Rows have prompts of about 30 tokens, and keys and values have `--cache-memory`. Prints the resident memory after each
tenth of the rows, its growth over the second half, and the share of the time outside of the engine: reading, templates,
encoding, scheduling, sampling and writing. `--profile` prints so many functions by the time that they took themselves;
it makes the rest slower.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from tinychat import cli
from tinychat.commands.batch_results import Outcome, Results
from tinychat.commands.loading import load_model
from tinychat.engine.engine import Engine

PLACES = "forest village garden harbour castle meadow island".split()
WHO = "a cat, a dog and an old captain"


class Measurements:
    """Time in the engine, and resident memory by the number of results."""

    def __init__(self, rows: int) -> None:
        self.engine_seconds = self.begun = self.ended = 0.0
        self.memory: list[tuple[int, float]] = []
        self._every = max(1, rows // 10)

    def install(self) -> None:
        """Measure from now on."""
        run, begin, add = Engine.run, Results.begin, Results.add

        def timed_run(engine: Engine, *arguments: Any, **keywords: Any) -> Any:
            started = perf_counter()
            try:
                return run(engine, *arguments, **keywords)
            finally:
                self.engine_seconds += perf_counter() - started

        def noted_begin(results: Results) -> None:
            begin(results)
            self.begun = perf_counter()

        def noted_add(results: Results, outcome: Outcome) -> None:
            add(results, outcome)
            self.ended = perf_counter()
            if results.done % self._every == 0:
                self.memory.append((results.done, resident_mib()))
                print(f"{results.done} rows: {self.memory[-1][1]:.1f} MiB", flush=True)

        Engine.run, Results.begin, Results.add = timed_run, noted_begin, noted_add  # type: ignore[method-assign]


def resident_mib() -> float:
    """Return the resident memory of this process that is its own, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024


def write_rows(path: Path, count: int) -> None:
    """Write the rows in the format of `path`."""
    rows = ({"id": i, "prompt": f"Tell me story {i} about {WHO} in a {PLACES[i % len(PLACES)]}."} for i in range(count))
    if path.suffix == ".parquet":
        from pyarrow import Table, parquet

        return parquet.write_table(Table.from_pylist([*rows]), path)
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
    parser.add_argument("--profile", type=int, default=0)
    options = parser.parse_args()
    measured = Measurements(options.rows)
    measured.install()
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
    seconds = measured.ended - measured.begun
    print(f"{options.rows / seconds:.0f} rows/s; outside of the engine: {1 - measured.engine_seconds / seconds:.1%}")
    later = [point for point in measured.memory if point[0] >= options.rows // 2]
    growth = (later[-1][1] - later[0][1]) / max(1, later[-1][0] - later[0][0]) * 100_000
    print(f"memory grows by {growth:.1f} MiB in 100,000 rows")
    return code


if __name__ == "__main__":
    sys.exit(main())
