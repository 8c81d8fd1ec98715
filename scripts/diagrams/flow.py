"""A flow: boxes on a grid with arrows between them, from a table of text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from diagrams.canvas import LINE_HEIGHT, Canvas, Point

COLUMN, ROW, BESIDE, MARGIN = 310, 116, 40, 12
BACK = 95  # how far an arrow that leads back is from the boxes


@dataclass(frozen=True)
class Step:
    """A box of a flow.

    Attributes
    ----------
    column, row : float
        Of the grid; a whole step apart, boxes do not touch.
    kind : str
        Of `diagrams.canvas.FILLS`.
    columns : int
        How many columns wide it is.
    title : str
    lines : list of str
    file : str
        The file of the package that does it; empty if there is none.
    """

    column: float
    row: float
    kind: str
    columns: int
    title: str
    lines: list[str]
    file: str


def steps_of(table: str) -> dict[str, Step]:
    """Return the steps of a table by name: ``name column row kind title | line | ... | file.py``, one to a line.

    ``code*3`` is of the kind "code", and three columns wide.
    """
    steps = {}
    for line in table.strip().splitlines():
        name, column, row, kind, words = line.split(maxsplit=4)
        title, *lines = words.split(" | ")
        kind, _, columns = kind.partition("*")
        file = lines.pop() if lines and lines[-1].endswith(".py") else ""
        steps[name] = Step(float(column), float(row), kind, int(columns or 1), title, lines, file)
    return steps


class Flow:
    """The drawing of a flow.

    Parameters
    ----------
    title : str
    table : str
        See `steps_of`.
    package : Path
        Where the files are that steps name.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """

    def __init__(self, title: str, table: str, package: Path) -> None:
        self.canvas = Canvas(title)
        self._steps = steps_of(table)
        for name, step in self._steps.items():
            if step.file and not (package / step.file).exists():
                raise FileNotFoundError(f"{step.file} is named by a diagram: draw what took its place")
            self._draw(name, step)

    def _place(self, name: str) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of a box."""
        step = self._steps[name]
        height = 34 + LINE_HEIGHT * (len(step.lines) + bool(step.file))
        left, top = MARGIN + step.column * COLUMN, MARGIN + step.row * ROW
        return left, top, left + step.columns * COLUMN - BESIDE, top + height

    def _draw(self, name: str, step: Step) -> None:
        left, top, right, bottom = self._place(name)
        middle, baseline = (left + right) / 2, top + 19
        self.canvas.box(left, top, right - left, bottom - top, step.kind)
        self.canvas.write(middle, baseline, step.title, "title")
        for line in step.lines:
            baseline += LINE_HEIGHT
            self.canvas.write(middle, baseline + 2, line)
        if step.file:
            self.canvas.write(middle, baseline + LINE_HEIGHT + 4, step.file, "file")

    def down(self, *names: str) -> None:
        """Draw arrows from each box to the next one below it; level in between where they are not in line."""
        for name, other in pairwise(names):
            left, _, right, bottom = self._place(name)
            other_left, top, other_right, _ = self._place(other)
            low, high = max(left, other_left), min(right, other_right)
            x, end, middle = (left + right) / 2, (other_left + other_right) / 2, (bottom + top) / 2
            points: list[Point] = [(x, bottom), (x, middle), (end, middle), (end, top - 2)]
            self.canvas.arrow([((low + high) / 2, bottom), ((low + high) / 2, top - 2)] if low < high else points)

    def across(self, name: str, other: str, both: bool = False) -> None:
        """Draw a level arrow to a box on the right of another."""
        _, top, right, bottom = self._place(name)
        other_left, other_top, _, other_bottom = self._place(other)
        y = (max(top, other_top) + min(bottom, other_bottom)) / 2
        self.canvas.arrow([(right, y), (other_left - 2, y)], both)

    def back(self, name: str, other: str, label: str) -> None:
        """Draw an arrow back up to an earlier box, beside the boxes on their left."""
        left, top, _, bottom = self._place(name)
        other_left, other_top, _, other_bottom = self._place(other)
        y, end, x = (top + bottom) / 2, (other_top + other_bottom) / 2, min(left, other_left) - BACK
        self.canvas.arrow([(left, y), (x, y), (x, end), (other_left - 2, end)])
        self.canvas.label(x, (y + end) / 2, label)
