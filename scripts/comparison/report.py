"""Medians and ratios, as the table that docs/benchmarks.md shows and as JSON."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

OURS = "tinychat"


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of every column, and how many times the other's ours is.

    Attributes
    ----------
    values : dict
        By engine, one value per run.
    """

    label: str
    values: dict[str, list[float]]

    def figure(self, column: Sequence[str]) -> tuple[str, float] | None:
        """Return which of a column's engines did best, and its median; None where nothing was measured."""
        medians = {name: median(self.values[name]) for name in column if self.values.get(name)}
        if not medians:
            return None
        best = max if self.label.endswith("tok/s") else min
        name = best(medians, key=medians.__getitem__)
        return name, medians[name]

    def ratio(self, column: Sequence[str]) -> float | None:
        """Return the median over runs of our value divided by that of the column's best engine."""
        best = self.figure(column)
        if best is None or not self.values.get(OURS):
            return None
        return median(ours / other for ours, other in zip(self.values[OURS], self.values[best[0]], strict=True))


def rounded(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: list[Row], columns: dict[str, list[str]]) -> str:
    """Return a markdown table.

    Parameters
    ----------
    columns : dict
        By title, the engines of which the fastest counts; what tells them apart stands in parentheses.
    """
    others = [title for title in columns if title != OURS]
    lines = ["| | " + " | ".join([*columns, *(f"{OURS} / {title}" for title in others)]) + " |"]
    lines.append("|---" + "|---:" * (len(columns) + len(others)) + "|")
    for row in rows:
        cells = [_cell(row, title, engines) for title, engines in columns.items()]
        ratios = [row.ratio(columns[title]) for title in others]
        cells += ["" if ratio is None else f"{ratio:.2f} x" for ratio in ratios]
        lines.append(f"| {row.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row, title: str, engines: list[str]) -> str:
    figure = row.figure(engines)
    if figure is None:
        return ""
    variant = figure[0].removeprefix(title).strip()
    return f"{rounded(figure[1])} ({variant})" if variant else rounded(figure[1])


def write_rates(how: str, titles: list[str], rows: Iterable[str], values: Mapping[str, object]) -> None:
    """Write to stdout where and how rates were measured, a markdown table, and all values as one line of JSON."""
    lines = [
        f"{processor()}; {how}",
        "",
        f"| {' | '.join(['', *titles])} |",
        "|---" + "|---:" * len(titles) + "|",
        *rows,
    ]
    sys.stdout.write("\n".join([*lines, json.dumps(values)]) + "\n")


def as_json(rows: list[Row], columns: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return all rows with every value, medians and ratios."""
    return [
        {
            "label": row.label,
            "values": row.values,
            "median": {name: median(values) for name, values in row.values.items() if values},
            "ratio": {title: row.ratio(engines) for title, engines in columns.items() if title != OURS},
        }
        for row in rows
    ]


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
