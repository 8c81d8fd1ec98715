"""Measure two actors of Ray, each on one core, beside one process with two threads: rate and memory, in turns.

    .venv/bin/python scripts/compare_actors.py [MODEL] [--rows 64] [--tokens 32] [--runs 3]

MODEL is a model folder, or "random" for random weights of about 1 GB, which are written once per call. Each turn is a
process of its own: it loads the model, answers some rows, then answers --rows rows on the clock. Memory is the sum of
PSS, in which pages that several processes map count once, of what has a model and of its helpers; Ray's own processes
are told apart.

stdout has a markdown table of medians and, as its last line, one JSON object with every value. Exit code 1 if the
actors have less than 0.9 times the rate, or more than 1.2 times the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from compare_spread import start_ray

from tinychat import RowAnswerer
from tinychat.bench.random_model import write_random_model

LEAST_RATE, MOST_MEMORY = 0.9, 1.2
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 26,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
SETTINGS: dict[str, Any] = {
    "temperature": 0.0,
    "repeat_penalty": 1.0,
    "ignore_eos": True,
    "context": 512,
    "cache_memory": 64 << 20,
    "as_chat": False,
    "parallel": 8,
}
BATCH = 16


def rows(count: int) -> list[dict[str, Any]]:
    """Return rows of equal work."""
    return [{"prompt": f"Row {i}: tell me a story."} for i in range(count)]


def memory_of(processes: list[int]) -> float:
    """Return the sum of PSS in MiB of processes and all that they have started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = set(processes)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(map(pss_of, found))


def pss_of(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def turn_of_one(model: str, count: int, tokens: int) -> dict[str, float]:
    """Answer the rows in this process, with two threads."""
    answerer = RowAnswerer(model, threads=2, max_tokens=tokens, **SETTINGS)
    answerer.answer(rows(BATCH))
    started = time.perf_counter()
    answered = answerer.answer(rows(count))
    seconds = time.perf_counter() - started
    return {"rate": sum(row["new_tokens"] for row in answered) / seconds, "memory": memory_of([os.getpid()])}


def turn_of_two(model: str, count: int, tokens: int) -> dict[str, float]:
    """Answer the rows with two actors, which take the next batch as they are ready."""
    import pyarrow
    import ray
    from ray.util import ActorPool

    from tinychat.ray import RowActor

    class TellingActor(RowActor):
        """Tells of its process."""

        def process(self) -> int:
            return os.getpid()

    start_ray()
    try:
        make = ray.remote(num_cpus=1)(TellingActor)
        actors = [make.remote(model, max_tokens=tokens, **SETTINGS) for _ in range(2)]
        ray.get([actor.__call__.remote(pyarrow.Table.from_pylist(rows(BATCH))) for actor in actors])
        asked = rows(count)
        batches = [pyarrow.Table.from_pylist(asked[i : i + BATCH]) for i in range(0, count, BATCH)]
        pool = ActorPool(actors)
        started = time.perf_counter()
        answered = [*pool.map_unordered(lambda actor, batch: actor.__call__.remote(batch), batches)]
        seconds = time.perf_counter() - started
        processes = ray.get([actor.process.remote() for actor in actors])
        new = sum(sum(table.column("new_tokens").to_pylist()) for table in answered)
        memory = memory_of(processes)
        return {"rate": new / seconds, "memory": memory, "of Ray": memory_of([os.getpid()]) - memory}
    finally:
        ray.shutdown()


def measured(way: str, model: str, options: argparse.Namespace) -> dict[str, float]:
    """Return what a turn in a process of its own has measured."""
    command = [sys.executable, __file__, model, f"--rows={options.rows}", f"--tokens={options.tokens}", f"--turn={way}"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="random", metavar="MODEL")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--turn", choices=["one", "two"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn is not None:
        turn = turn_of_one if options.turn == "one" else turn_of_two
        print(json.dumps(turn(options.model, options.rows, options.tokens)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_random_model(SHAPE, Path(folder))) if options.model == "random" else options.model
        turns: dict[str, list[dict[str, float]]] = {"one": [], "two": []}
        for run in range(options.runs):
            for way in ("one", "two") if run % 2 == 0 else ("two", "one"):
                turns[way].append(measured(way, model, options))
    rate = {way: median(each["rate"] for each in found) for way, found in turns.items()}
    memory = {way: median(each["memory"] for each in found) for way, found in turns.items()}
    print("| | one process, two threads | two actors, a core each | ratio |\n|---|---|---|---|")
    print(f"| tokens a second | {rate['one']:.1f} | {rate['two']:.1f} | {rate['two'] / rate['one']:.2f} |")
    print(f"| PSS in MiB | {memory['one']:.0f} | {memory['two']:.0f} | {memory['two'] / memory['one']:.2f} |")
    print(json.dumps(turns))
    is_good = rate["two"] >= LEAST_RATE * rate["one"] and memory["two"] <= MOST_MEMORY * memory["one"]
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
