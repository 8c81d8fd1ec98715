"""Compare the rates that `tinychat models --available` estimates with those of random weights in the same shapes.

    .venv/bin/python scripts/compare_estimates.py smollm2-135m qwen3.5-0.8b --rounds 3

For each round, the memory's bandwidth is measured as the command does, and then a reply is written from an empty
context, for each shape in its turn. stdout has a markdown table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from catalog_shapes import catalog_config, cut

from tinychat.bench.random_model import write_random_model
from tinychat.generate.loading import load_folder
from tinychat.generate.model import Model
from tinychat.store.catalog import CATALOG, CatalogEntry
from tinychat.store.estimates import memory_bandwidth, tokens_per_second

TOKENS = 64


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CATALOG), help="of `tinychat models --available`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=6, help="larger models get fewer layers")
    asked = parser.parse_args()
    if unknown := {*asked.names} - {*CATALOG}:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(CATALOG)}")
    found = {}
    for entry in (cut(CATALOG[name], asked.gigabytes * 1e9) for name in asked.names):
        label = f"{entry.name}, {entry.shape.layers} layers"
        with tempfile.TemporaryDirectory() as folder, load_folder(_written(entry, Path(folder)), draft=False) as model:
            found[label] = [(tokens_per_second(entry, memory_bandwidth), rate(model)) for _ in range(asked.rounds)]
        print(f"{label}: {found[label]}", file=sys.stderr)
    print("| shape | estimated tok/s | measured | ratio |\n|---|---:|---:|---:|")
    for label, pairs in found.items():
        estimated, measured = (median(values) for values in zip(*pairs))
        print(f"| {label} | {estimated:.1f} | {measured:.1f} | {median(a / b for a, b in pairs):.2f} |")
    print(json.dumps(found))


def _written(entry: CatalogEntry, folder: Path) -> Path:
    print(f"writing {entry.name}", file=sys.stderr)
    return write_random_model(catalog_config(entry), folder)


def rate(model: Model) -> float:
    """Return the tokens a second of a reply, without its first."""
    stream = model.stream([1, 5, 17, 99], temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    next(stream)
    started = perf_counter()
    stream.to_end()
    return (TOKENS - 1) / (perf_counter() - started)


if __name__ == "__main__":
    main()
