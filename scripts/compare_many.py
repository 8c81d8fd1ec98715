"""Measure replies that are written at once: tinychat and llama.cpp, from one sequence to many.

    .venv/bin/python scripts/compare_many.py CHECKPOINT --llama-python PATH

Both take the same four-bit weights, one token of every sequence in each pass, after a short prompt of each. Each engine
is a process of its own, only one works at a time, and every figure is taken once per run, in turns.

stdout has a markdown table of medians and, as its last line, one JSON object with every value. Beside each rate stand
its share of the prefill rate, what a pass takes as a multiple of a pass over one sequence, and the ratio of the two.
``scripts/make_random_checkpoint.py`` writes a checkpoint of random weights in a real shape.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from statistics import median

from comparison import measuring, models
from comparison.measuring import Rate
from comparison.processes import EngineError, running, versions_of, work_folder
from comparison.report import OURS, rounded, write_rates

LLAMA = "llama.cpp"
PROMPT = 512
PASSES = 16


def engine_commands(arguments: argparse.Namespace, work: Path) -> dict[str, list[str]]:
    """Convert the checkpoint for both programs where that has not been done; return what starts both."""
    ours, theirs = models.int4_for_both(arguments.checkpoint, work, arguments.llama_python, arguments.threads)
    threads = ["--threads", str(arguments.threads)]
    commands = {
        OURS: [sys.executable, "-P", "-m", "comparison.tinychat_engine", str(ours), *threads],
        LLAMA: [arguments.llama_python, "-P", "-m", "comparison.llama_engine", str(theirs), *threads],
    }
    commands[LLAMA] += ["--flash-attention", "on"]
    return commands


def rows(found: dict[Rate, dict[str, list[float]]]) -> list[str]:
    """Return the lines of the table."""
    prefill = next(values for rate, values in found.items() if rate.kind == "prefill")
    one = next(values for rate, values in found.items() if rate.sequences == 1 and rate.kind == "many")
    lines = []
    for rate, values in found.items():
        ours, theirs = values[OURS], values[LLAMA]
        cells = [rate.label, rounded(median(ours)), rounded(median(theirs)), f"{ratio(ours, theirs):.2f} x"]
        if rate.kind == "many":
            shares = [f"{100 * ratio(values[name], prefill[name]):.0f} %" for name in (OURS, LLAMA)]
            cells += [*shares, f"{rate.sequences * ratio(one[OURS], ours):.2f} x"]
        else:
            cells += ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ratio(some: list[float], others: list[float]) -> float:
    """Return the median of the ratios of the runs."""
    return median(a / b for a, b in zip(some, others, strict=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure replies that are written at once.")
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="Hugging Face checkpoint folder")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 3, 4, 5, 8, 16, 32], metavar="N")
    parser.add_argument("--llama-python", metavar="PATH", default=sys.executable, help="interpreter with llama_cpp")
    parser.add_argument("--work", metavar="FOLDER", type=Path, help="keep the converted models here")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    rates = [Rate("prefill", PROMPT)]
    rates += [Rate("many", PASSES, sequences=count) for count in sorted({1, *arguments.sequences})]
    try:
        with work_folder(arguments.work) as work, running(engine_commands(arguments, work)) as engines:
            found = measuring.measure_rates(engines, rates, arguments.runs)
            versions = ", ".join(versions_of(engines))
    except (EngineError, OSError) as error:
        sys.exit(f"error: {error}")
    command = ["scripts/compare_many.py", arguments.checkpoint.name, "--runs", str(arguments.runs)]
    titles = [OURS, LLAMA, f"{OURS} / {LLAMA}", f"{OURS}: share of prefill", f"{LLAMA}: share of prefill"]
    write_rates(
        f"{versions}; medians of {arguments.runs} runs in turns: `{shlex.join(command)}`",
        [*titles, f"{OURS}: a pass / a pass over one"],
        rows(found),
        {rate.label: values for rate, values in found.items()},
    )


if __name__ == "__main__":
    main()
