"""Measure tinychat beside programs that hold the cores: alone, with one spinning process, with one for each core.

    .venv/bin/python scripts/compare_busy_cores.py CHECKPOINT --llama-python PATH

In each situation: tinychat as it is, which chooses how many threads it uses; tinychat with each fixed number of
threads; and llama.cpp with a thread for each core, its usual number. Each engine is a process of its own, only one
works at a time, and every figure is taken once per run, in turns. A last check compares the logits after all of it
with those of one thread: they must be the same bits, whatever happened to the threads.

stdout has a markdown table of medians and, as its last line, one JSON object with every value.
``scripts/make_random_checkpoint.py`` writes a checkpoint of random weights in a real shape.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from comparison import measuring, models
from comparison.processes import EngineError, EngineProcess, clean_environment, running, versions_of, work_folder
from comparison.report import OURS, rounded, write_rates

from tinychat.machine import usable_cores

LLAMA = "llama.cpp"
SETTLE_SECONDS = 0.5
SPINNING = "while True: pass"
Values = dict[str, list[float]]


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Let `count` processes spin, each on a core of its own where this system lets one choose."""
    processes, usable = [], usable_cores()
    try:
        for core in range(count):
            processes.append(subprocess.Popen([sys.executable, "-P", "-c", SPINNING], env=clean_environment()))
            if usable:
                os.sched_setaffinity(processes[-1].pid, {usable[core % len(usable)]})
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def engine_commands(arguments: argparse.Namespace, work: Path) -> dict[str, list[str]]:
    """Convert the checkpoint for both programs where that has not been done; return what starts every engine."""
    ours, theirs = models.int4_for_both(arguments.checkpoint, work, arguments.llama_python, arguments.threads)
    start = [sys.executable, "-P", "-m", "comparison.tinychat_engine", str(ours), "--threads"]
    commands = {OURS: [*start, str(arguments.threads)]}
    for threads in range(1, arguments.threads + 1):
        commands[fixed(threads)] = [*start, str(threads), "--fixed"]
    llama = [arguments.llama_python, "-P", "-m", "comparison.llama_engine", str(theirs)]
    commands[LLAMA] = [*llama, "--threads", str(arguments.threads), "--flash-attention", "on"]
    return commands


def fixed(threads: int) -> str:
    """Return the name of tinychat with a fixed number of threads."""
    return f"{threads} thread{'s' * (threads > 1)}"


def row(label: str, values: Values) -> str:
    """Return a line of the table: medians, and ours as a multiple of the best fixed number's and of llama.cpp's."""
    medians = {name: median(found) for name, found in values.items()}
    best = max((name for name in values if name not in (OURS, LLAMA)), key=medians.__getitem__)
    ratios = [median(a / b for a, b in zip(values[OURS], values[other])) for other in (best, LLAMA)]
    cells = [label, *map(rounded, medians.values()), *(f"{ratio:.2f} x" for ratio in ratios)]
    return f"| {' | '.join(cells)} |"


def measure(engines: dict[str, EngineProcess], arguments: argparse.Namespace) -> dict[str, Values]:
    """Measure every rate in every situation, all engines in turns."""
    rates = measuring.planned_rates([arguments.prompt], [arguments.depth])
    found: dict[str, Values] = {}
    for count in range(arguments.threads + 1):
        with spinning(count):
            for rate, values in measuring.measure_rates(engines, rates, arguments.runs).items():
                found[f"{count} spinning: {rate.label}"] = values
    return found


def check_same_bits(engines: dict[str, EngineProcess]) -> None:
    """Compare logits of our engines after all they went through, beside spinning processes.

    Raises
    ------
    EngineError
        If they differ.
    """
    with spinning(1):
        answers = {
            name: engine.ask(do="logits", tokens=measuring.CHECKED_TOKENS)["logits"]
            for name, engine in engines.items()
            if name != LLAMA
        }
    if any(logits != answers[OURS] for logits in answers.values()):
        raise EngineError("logits depend on the number of threads")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure tinychat beside programs that hold the cores.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="Hugging Face checkpoint folder")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, metavar="TOKENS")
    parser.add_argument("--depth", type=int, default=0, metavar="TOKENS")
    parser.add_argument("--llama-python", metavar="PATH", default=sys.executable, help="interpreter with llama_cpp")
    parser.add_argument("--work", metavar="FOLDER", type=Path, help="keep the converted models here")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    try:
        with work_folder(arguments.work) as work, running(engine_commands(arguments, work)) as engines:
            found = measure(engines, arguments)
            check_same_bits(engines)
            versions = ", ".join(versions_of(engines))
    except (EngineError, OSError) as error:
        sys.exit(f"error: {error}")
    options = ["--runs", str(arguments.runs), "--prompt", str(arguments.prompt)]
    command = ["scripts/compare_busy_cores.py", arguments.checkpoint.name, *options]
    write_rates(
        f"{versions}; medians of {arguments.runs} runs in turns: `{shlex.join(command)}`",
        [*engines, f"{OURS} / best fixed", f"{OURS} / {LLAMA}"],
        (row(label, values) for label, values in found.items()),
        found,
    )


if __name__ == "__main__":
    main()
