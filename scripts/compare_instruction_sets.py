"""Measure prefill, decode and replies at once of kernels compiled for several instruction sets, in turns.

    .venv/bin/python scripts/compare_instruction_sets.py amx avx512vnni random:tinyllama-1.1b
    .venv/bin/python scripts/compare_instruction_sets.py amx ../old:amx MODEL_FOLDER

An instruction set is a value of TINYCHAT_ISA, ``amx+int8`` is one with a type of the KV cache, and ``CHECKOUT:amx`` has
the kernels of another checkout, with the interpreter of its own ``.venv``. Each is a process of its own; all stay, and
only one works at a time.

stdout has a markdown table of medians and of the median ratios of the first to the others, run by run, and, as its last
line, one JSON object with every value. A ratio above 1 means that the first is faster.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from comparison.measuring import Rate, planned_rates, rates_of
from comparison.processes import work_folder
from comparison.report import rounded, write_rates

from tinychat.bench.random_model import write_random_model
from tinychat.models.shapes import config_of

RANDOM = "random:"


def engine_command(variant: str, folder: Path, threads: int) -> list[str]:
    """Return the command that starts the engine of an instruction set."""
    checkout, _, rest = variant.rpartition(":")
    isa, _, kv = rest.partition("+")
    python = str(Path(checkout).absolute() / ".venv" / "bin" / "python") if checkout else sys.executable
    engine = [python, "-P", "-m", "comparison.tinychat_engine", str(folder), "--threads", str(threads), "--fixed"]
    return ["env", f"TINYCHAT_ISA={isa}", *engine, *(["--kv", kv] if kv else [])]


def row(rate: Rate, values: dict[str, list[float]]) -> str:
    """Return a line of the table."""
    first, *others = values
    ratios = [median(a / b for a, b in zip(values[first], values[other], strict=True)) for other in others]
    cells = [rounded(median(each)) for each in values.values()] + [f"{ratio:.3f} x" for ratio in ratios]
    return f"| {' | '.join([rate.label, *cells])} |"


def parse_arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure kernels of several instruction sets in turns.")
    parser.add_argument("variants", metavar="[CHECKOUT:]ISA[+KV]", nargs="+")
    parser.add_argument("model", metavar="MODEL", help="model folder, or random:SHAPE")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompts", type=int, nargs="*", default=[512, 2048], metavar="TOKENS")
    parser.add_argument("--depths", type=int, nargs="*", default=[0], metavar="TOKENS")
    parser.add_argument("--at-once", type=int, nargs="*", default=[16], metavar="REPLIES")
    arguments = parser.parse_args(given)
    if len(arguments.variants) < 2:
        parser.error("name two instruction sets or more")
    return arguments


def main(given: list[str] | None = None) -> None:
    arguments = parse_arguments(given)
    rates = planned_rates(arguments.prompts, arguments.depths)
    rates += [Rate("many", 16, sequences=count) for count in arguments.at_once]
    with work_folder(None) as work:
        folder = Path(arguments.model).absolute()
        if arguments.model.startswith(RANDOM):
            folder = work / "random"
            folder.mkdir()
            write_random_model(config_of(arguments.model.removeprefix(RANDOM)), folder)
        commands = {each: engine_command(each, folder, arguments.threads) for each in arguments.variants}
        found = rates_of(commands, rates, arguments.runs)
    first, *others = arguments.variants
    write_rates(
        f"{arguments.threads} threads; medians of {arguments.runs} runs in turns",
        [*arguments.variants, *(f"{first} / {other}" for other in others)],
        (row(rate, values) for rate, values in found.items()),
        {rate.label: values for rate, values in found.items()},
    )


if __name__ == "__main__":
    main()
