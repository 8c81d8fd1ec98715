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
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from tinychat.bench.random_model import write_random_model
from tinychat.generate.loading import load_folder
from tinychat.generate.model import Model
from tinychat.store.catalog import CATALOG, CatalogEntry
from tinychat.store.estimates import disk_bytes, memory_bandwidth, tokens_per_second

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
        label = f"{entry.name}, {entry.config.num_hidden_layers} layers"
        with tempfile.TemporaryDirectory() as folder, load_folder(_written(entry, Path(folder)), draft=False) as model:
            found[label] = [(tokens_per_second(entry, memory_bandwidth), rate(model)) for _ in range(asked.rounds)]
        print(f"{label}: {found[label]}", file=sys.stderr)
    print("| shape | estimated tok/s | measured | ratio |\n|---|---:|---:|---:|")
    for label, pairs in found.items():
        estimated, measured = (median(values) for values in zip(*pairs))
        print(f"| {label} | {estimated:.1f} | {measured:.1f} | {median(a / b for a, b in pairs):.2f} |")
    print(json.dumps(found))


def cut(entry: CatalogEntry, most_bytes: float) -> CatalogEntry:
    """Return the model with as many of its first layers as take so many bytes in int4."""
    whole, layers = entry, entry.config.num_hidden_layers
    while disk_bytes(entry) > most_bytes:
        layers -= 1
        entry = replace(whole, more={**whole.more, **_of_first(whole, layers)})
    return entry


def _of_first(entry: CatalogEntry, layers: int) -> dict[str, object]:
    """Return the keys of ``config.json`` that are others for a model's first layers."""
    found: dict[str, object] = {"num_hidden_layers": layers}
    found |= {key: entry.more[key][:layers] for key in ("layer_types", "hybrid_override_pattern") if key in entry.more}
    if (varied := entry.config.varied) is not None:
        # As large a part of them reads keys and values of others, if each kind of layer has its own.
        readers = len(varied.readers((*varied.narrow, *varied.wide)))
        period = varied.wide[0] + 1 if varied.wide else 0
        count = entry.config.num_hidden_layers
        found["num_kv_shared_layers"] = min(readers * layers // count, max(layers - period, 0))
    return found


def _written(entry: CatalogEntry, folder: Path) -> Path:
    print(f"writing {entry.name}", file=sys.stderr)
    return write_random_model({"bos_token_id": 1, "eos_token_id": 2, **entry.values}, folder)


def rate(model: Model) -> float:
    """Return the tokens a second of a reply, without its first."""
    stream = model.stream([1, 5, 17, 99], temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    next(stream)
    started = perf_counter()
    stream.to_end()
    return (TOKENS - 1) / (perf_counter() - started)


if __name__ == "__main__":
    main()
