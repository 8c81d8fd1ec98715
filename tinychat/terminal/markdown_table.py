"""Markdown tables that fit into any terminal without losing text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Of borders, for each column.
_CELLS_BETWEEN = 2
# Narrower columns cannot be read.
_MIN_WIDTH = 4
_INDENT = 2


class FoldedTable(TableElement):
    """A table that folds its cells, or shows rows as lines of ``key: value`` if a column would be too narrow."""

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        header = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        columns = [[title, *(row[index] for row in rows)] for index, title in enumerate(header)]
        natural = [max(_width(text) for text in column) for column in columns]
        widths = shared_widths(natural, options.max_width - _CELLS_BETWEEN * len(columns))
        if any(width < min(_MIN_WIDTH, wanted) for width, wanted in zip(widths, natural)):
            yield from _as_records(header, rows)
        else:
            has_breaks = any("\n" in cell.plain for row in rows for cell in row)
            yield _as_table(header, rows, widths, is_folded=widths != natural or has_breaks)


def shared_widths(natural: Sequence[int], available: int) -> list[int]:
    """Share `available` cells among columns: narrow ones get their natural width, others equal shares of the rest."""
    widths = list(natural)
    left = max(available, 0)
    for count, index in enumerate(sorted(range(len(natural)), key=natural.__getitem__)):
        widths[index] = min(natural[index], left // (len(natural) - count))
        left -= widths[index]
    return widths


def _width(text: Text) -> int:
    return max((line.cell_len for line in text.split()), default=0)


def _as_table(header: Sequence[Text], rows: Sequence[Sequence[Text]], widths: Sequence[int], is_folded: bool) -> Table:
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        style="markdown.table.border",
        collapse_padding=True,
        # An empty line separates folded rows.
        show_lines=is_folded,
    )
    for title, width in zip(header, widths):
        heading = title.copy()
        heading.stylize("markdown.table.header")
        table.add_column(heading, overflow="fold", width=max(width, 1))
    for row in rows:
        table.add_row(*row)
    return table


def _as_records(header: Sequence[Text], rows: Sequence[Sequence[Text]]) -> Iterator[Text | Padding]:
    """Yield a line for each cell, and an empty line between rows."""
    for number, row in enumerate(rows or [[Text() for _ in header]]):
        if number:
            yield Text()
        for index, (title, cell) in enumerate(zip(header, row)):
            line = Text(overflow="fold")
            line.append_text(title)
            line.stylize("markdown.table.header")
            line.append(": ")
            line.append_text(cell)
            # The first cell is mostly the title of the row.
            yield Padding(line, (0, 0, 0, _INDENT)) if index else line
