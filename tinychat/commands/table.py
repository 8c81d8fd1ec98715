"""Tables of a list of things, for the terminal or another program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table, numbers aligned to the right."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table)]
    for row in table:
        cells = [cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width) for cell, width in zip(row, widths)]
        print("  ".join(cells).rstrip())
