"""Boxes, labels and arrows as SVG that reads well on light and dark pages.

All text stands on a fill of its own, and arrows have a grey that is seen on white as on black. Numbers are whole, so a
drawing is the same text on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

Point = tuple[float, float]

TEXT = "#1f2328"
LINE = "#7d848e"
# What a box stands for, and its fill.
FILLS = {"code": "#dbeafe", "data": "#fdf0c4", "person": "#d9f2df", "ground": "#e4e7eb", "label": "#f6f8fa"}
LINE_HEIGHT = 16
_FONT = "13px ui-sans-serif, system-ui, 'Segoe UI', sans-serif"
_CHARACTER = 6.4  # the usual width of one; labels have room to spare
_CORNER = 12

_STYLE = f"""\
<style>
text {{ font: {_FONT}; fill: {TEXT}; text-anchor: middle }}
.title {{ font-weight: 600 }}
.file {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 11px }}
.small {{ font-size: 12px }}
.box {{ stroke: {LINE}; stroke-width: 1 }}
.arrow {{ fill: none; stroke: {LINE}; stroke-width: 1.5 }}
.head {{ fill: {LINE} }}
</style>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
<path class="head" d="M0 0 8 4 0 8z"/>
</marker>
</defs>
"""


class Canvas:
    """A drawing; arrows are below boxes and labels above both, in whatever order they are added.

    Parameters
    ----------
    title : str
        What the drawing shows, for readers who do not see it.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._arrows: list[str] = []
        self._boxes: list[str] = []
        self._labels: list[str] = []
        self._width = self._height = 0.0

    def box(self, left: float, top: float, width: float, height: float, kind: str = "code") -> None:
        """Draw a box of a kind of `FILLS`."""
        self._boxes.append(_rectangle(left, top, width, height, kind, 6))
        self._reach(left + width, top + height)

    def write(self, x: float, baseline: float, text: str, style: str = "small") -> None:
        """Write a line of text in a box, around `x`."""
        self._boxes.append(_text(x, baseline, text, style))

    def label(self, x: float, y: float, text: str) -> None:
        """Write a text on a fill of its own, around a point."""
        width = _CHARACTER * len(text) + 12
        self._labels.append(_rectangle(x - width / 2, y - 10, width, 20, "label", 10))
        self._labels.append(_text(x, y + 4, text, "small"))
        self._reach(x + width / 2, y + 10)

    def arrow(self, points: Sequence[Point], both: bool = False) -> None:
        """Draw an arrow through points, round at its corners; with a head at both ends if it stands for both ways."""
        start = ' marker-start="url(#head)"' if both else ""
        self._arrows.append(f'<path class="arrow" d="{_rounded(points)}"{start} marker-end="url(#head)"/>')
        for x, y in points:
            self._reach(x, y)

    def curve(self, points: Sequence[Point]) -> None:
        """Draw an arrow that goes down through points, upright at each of them."""
        steps = [f"M{round(points[0][0])} {round(points[0][1])}"]
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = round((y0 + y1) / 2)
            steps.append(f"C{round(x0)} {middle} {round(x1)} {middle} {round(x1)} {round(y1)}")
        self._arrows.append(f'<path class="arrow" d="{" ".join(steps)}" marker-end="url(#head)"/>')

    def svg(self) -> str:
        """Return the drawing."""
        width, height = round(self._width) + 10, round(self._height) + 10
        title = escape(self._title)
        begin = f'<svg viewBox="0 0 {width} {height}" width="{width}" xmlns="http://www.w3.org/2000/svg" role="img">\n'
        shapes = "\n".join([*self._arrows, *self._boxes, *self._labels])
        return f"{begin}<title>{title}</title>\n{_STYLE}{shapes}\n</svg>\n"

    def _reach(self, right: float, bottom: float) -> None:
        self._width, self._height = max(self._width, right), max(self._height, bottom)


def _rectangle(left: float, top: float, width: float, height: float, kind: str, corner: int) -> str:
    place = f'x="{round(left)}" y="{round(top)}" width="{round(width)}" height="{round(height)}"'
    return f'<rect class="box" {place} rx="{corner}" fill="{FILLS[kind]}"/>'


def _text(x: float, baseline: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{round(x)}" y="{round(baseline)}">{escape(text)}</text>'


def _rounded(points: Sequence[Point]) -> str:
    """Return a path through points whose corners are cut by curves; lines are level or upright."""
    path = [f"M{round(points[0][0])} {round(points[0][1])}"]
    for before, (x, y), after in zip(points, points[1:], points[2:]):
        near, far = _towards((x, y), before), _towards((x, y), after)
        path.append(f"L{near[0]} {near[1]} Q{round(x)} {round(y)} {far[0]} {far[1]}")
    path.append(f"L{round(points[-1][0])} {round(points[-1][1])}")
    return " ".join(path)


def _towards(corner: Point, other: Point) -> tuple[int, int]:
    """Return the point at which a line to `other` begins to leave a corner."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(dx) + abs(dy), 1)
    part = min(_CORNER, length / 2) / length
    return round(corner[0] + part * dx), round(corner[1] + part * dy)
