"""Measure the decode rate of two checkouts of tinychat, one and several sequences, in turns.

    .venv/bin/python scripts/compare_decode.py OLD_CHECKOUT NEW_CHECKOUT MODEL

Each checkout is a process of its own, with the interpreter of its own ``.venv`` where there is one; both stay, only one
works at a time, and every rate is taken once per run, first of the one, then of the other, then the other way round.
A reply is asked for by ``Model.generate``, several by ``Model.generate_many``: what a token costs in Python counts, and
both versions must have nothing but these. MODEL is a folder or a name; a relative path is one from here.

stdout has a markdown table of medians, the median of the ratios of the runs with the lowest and the highest of them,
and, as its last line, one JSON object with every value. A ratio above 1 means that the new checkout is faster.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from comparison.measuring import Rate, rates_of
from comparison.report import rounded, write_rates
from comparison.serving import SHORT_PROMPT

OLD, NEW = "old", "new"


def engine_command(checkout: Path, arguments: argparse.Namespace) -> list[str]:
    """Return the command that starts the engine of a checkout."""
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    model = arguments.model
    named = os.path.abspath(model) if os.path.exists(model) else model
    command = [python, "-P", "-m", "comparison.public_engine", named, "--checkout", str(checkout)]
    return [*command, "--threads", str(arguments.threads), *["--draft"] * arguments.draft]


def row(rate: Rate, values: dict[str, list[float]]) -> str:
    """Return a line of the table."""
    ratios = [new / old for new, old in zip(values[NEW], values[OLD], strict=True)]
    medians = [rounded(median(values[name])) for name in (OLD, NEW)]
    cells = [rate.label, *medians, f"{median(ratios):.3f} x", f"{min(ratios):.3f} to {max(ratios):.3f}"]
    return f"| {' | '.join(cells)} |"


def parse_arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the decode rate of two checkouts of tinychat.")
    parser.add_argument("old", metavar="OLD_CHECKOUT", type=Path)
    parser.add_argument("new", metavar="NEW_CHECKOUT", type=Path)
    parser.add_argument("model", metavar="MODEL", help="model folder, or a name that both checkouts know")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=128, help="of each reply")
    parser.add_argument("--sequences", type=int, default=8, help="of those that are written at once")
    parser.add_argument("--draft", action="store_true", help="let single replies have drafts")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    arguments = parse_arguments(given)
    rates = [
        Rate("decode", arguments.tokens, depth=SHORT_PROMPT),
        Rate("many", arguments.tokens, sequences=arguments.sequences),
    ]
    checkouts = {OLD: arguments.old.resolve(), NEW: arguments.new.resolve()}
    commands = {name: engine_command(checkout, arguments) for name, checkout in checkouts.items()}
    found = rates_of(commands, rates, arguments.runs)
    write_rates(
        f"{arguments.threads} threads; medians of {arguments.runs} runs in turns",
        [OLD, NEW, "new / old", "of single runs"],
        (row(rate, values) for rate, values in found.items()),
        {rate.label: values for rate, values in found.items()},
    )


if __name__ == "__main__":
    main()
