"""Tables of markdown that lose nothing, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import TableElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Between two columns and at both edges together, for each column.
_CELLS_BETWEEN = 2
# Fewer in a line cannot be read.
_LEAST_WIDTH = 4
_INDENT = 2


class FoldedTable(TableElement):
    """A table whose cells are folded where they do not fit.

    Where a column would become too narrow for that, each row is written as lines of ``key: value``.
    """

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        header = [cell.content for cell in self.header.row.cells] if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in self.body.rows] if self.body else []
        columns = [[title, *(row[place] for row in rows)] for place, title in enumerate(header)]
        natural = [max(_width(text) for text in column) for column in columns]
        widths = shared_widths(natural, options.max_width - _CELLS_BETWEEN * len(columns))
        if any(width < min(_LEAST_WIDTH, wanted) for width, wanted in zip(widths, natural)):
            yield from _as_records(header, rows)
        else:
            has_breaks = any("\n" in cell.plain for row in rows for cell in row)
            yield _as_table(header, rows, widths, is_folded=widths != natural or has_breaks)


def shared_widths(natural: Sequence[int], available: int) -> list[int]:
    """Return widths of columns: their own where they are narrow, an equal share of the rest for the others.

    Parameters
    ----------
    natural : sequence of int
        Cells that each column takes unfolded.
    available : int
        Cells for all of them.
    """
    widths = list(natural)
    left = max(available, 0)
    for count, place in enumerate(sorted(range(len(natural)), key=natural.__getitem__)):
        widths[place] = min(natural[place], left // (len(natural) - count))
        left -= widths[place]
    return widths


def _width(text: Text) -> int:
    return max((line.cell_len for line in text.split()), default=0)


def _as_table(header: Sequence[Text], rows: Sequence[Sequence[Text]], widths: Sequence[int], is_folded: bool) -> Table:
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        style="markdown.table.border",
        collapse_padding=True,
        # An empty line tells folded rows apart.
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
    """Write each row as a line for each cell, an empty line between two rows."""
    for number, row in enumerate(rows or [[Text() for _ in header]]):
        if number:
            yield Text()
        for place, (title, cell) in enumerate(zip(header, row)):
            line = Text(overflow="fold")
            line.append_text(title)
            line.stylize("markdown.table.header")
            line.append(": ")
            line.append_text(cell)
            # The first cell mostly says what the row is about.
            yield Padding(line, (0, 0, 0, _INDENT)) if place else line
