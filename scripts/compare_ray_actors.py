"""Compare two actors of Ray, a core each, with one process of two threads: tokens a second and memory, in turns.

    .venv/bin/python scripts/compare_ray_actors.py MODEL_FOLDER [--rounds 3] [--seconds 8]

Both do what `tinychat bench MODEL --actors` does in its processes, the actors as subclasses of `tinychat.ray.RowActor`.
Memory is that of the process and of the actors, in which a page that several processes map counts once (PSS); that of
Ray's other processes is beside it, and that of an actor that does nothing. Only in turns are such rates worth anything.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ray

from tinychat.bench.actors import AT_ONCE, CONTEXT, NEW_TOKENS, endless_rows, measure_actors
from tinychat.engine.blocks import sequence_bytes
from tinychat.engine.loading import default_kv
from tinychat.machine import proportional_bytes
from tinychat.models.folder import open_model_folder
from tinychat.ray import RowActor


class Turn(NamedTuple):
    """Tokens a second of two actors, and MiB: theirs, of two that do nothing, of Ray's other processes."""

    tok_s: float
    memory: float
    empty: float
    others: float


class Idle:
    """An actor that does nothing."""

    def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()


class Measured(RowActor):
    """Answers rows without end."""

    def begin(self) -> int:
        """Answer the first rows, which wake threads and fill caches; return the number of the process."""
        self._events = self._answerer.model.write_many(endless_rows(self._answerer), AT_ONCE)
        next(event for event in self._events if event[0] >= AT_ONCE)
        return os.getpid()

    def rate(self, seconds: float) -> float:
        """Return the tokens in a second."""
        started, tokens = time.perf_counter(), 0
        for _, event in self._events:
            tokens += len(getattr(event, "ids", ()))
            if (took := time.perf_counter() - started) >= seconds:
                break
        return tokens / took


def mib(*processes: int) -> float:
    """Return the memory of processes."""
    return sum(proportional_bytes(process) or 0 for process in processes) / (1 << 20)


def actors_of_ray(folder: Path, seconds: float, session: str) -> Turn:
    """Measure two actors."""
    opened = open_model_folder(folder)
    kv = default_kv(opened.config, opened.quantization)
    memory = AT_ONCE * sequence_bytes(opened.config, kv, CONTEXT)
    settings: dict[str, Any] = {"context": CONTEXT, "kv": kv, "cache_memory": memory}
    settings |= {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    idle = [ray.remote(num_cpus=1)(Idle).remote() for _ in range(2)]
    empty = mib(*ray.get([each.process.remote() for each in idle]))
    for each in idle:
        ray.kill(each)
    actors = [ray.remote(num_cpus=1)(Measured).remote(str(folder), **settings) for _ in range(2)]
    processes = ray.get([each.begin.remote() for each in actors])
    rate = sum(ray.get([each.rate.remote(seconds) for each in actors]))
    others = {*processes_of(session)} - {*processes, os.getpid()}
    turn = Turn(rate, mib(*processes), empty, mib(*others))
    for each in actors:
        ray.kill(each)
    time.sleep(2)
    return turn


def processes_of(session: str) -> list[int]:
    """Return the processes of a session of Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if session in command or command.startswith("ray::"):
            found.append(int(path.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    session = str(context.address_info["session_dir"])
    turns, alone = [], []
    for number in range(options.rounds):
        for is_ray in (number % 2 == 0, number % 2 == 1):
            if is_ray:
                turns.append(actors_of_ray(options.folder, options.seconds, session))
            else:
                alone += measure_actors(options.folder, [1], 1, threads=2, seconds=options.seconds)
        print(f"round {number + 1}: {turns[-1].tok_s / alone[-1].tok_s:.2f} of the rate", flush=True)
    rates = median(turn.tok_s for turn in turns), median(each.tok_s for each in alone)
    memory = median(turn.memory for turn in turns), median(each.memory_mib or 0.0 for each in alone)
    print(f"tok/s: actors {rates[0]:.1f}, process {rates[1]:.1f}, ratio {rates[0] / rates[1]:.2f}")
    print(f"MiB: actors {memory[0]:.0f}, process {memory[1]:.0f}, ratio {memory[0] / memory[1]:.2f}")
    empty, others = median(turn.empty for turn in turns), median(turn.others for turn in turns)
    print(f"two actors without a model {empty:.0f} MiB, Ray's other processes {others:.0f} MiB")
    ray.shutdown()


if __name__ == "__main__":
    main()
