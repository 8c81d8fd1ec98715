"""The loss of a training run as a picture."""

import math
import re
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 640, 320, 48
_LINE = re.compile(r"step (\d+) of \d+ tokens (\d+) loss ([\d.]+)")
Point = tuple[float, float]
"""Tokens and loss."""


def points(log: str) -> list[Point]:
    """Return what a training log says; a run that was resumed tells some steps twice: the last time counts."""
    found = {int(step): (float(tokens), float(loss)) for step, tokens, loss in _LINE.findall(log)}
    return [found[step] for step in sorted(found)]


def svg(curve: list[Point]) -> str:
    """Return the curve as an SVG picture: tokens to the right, the loss upwards on a logarithmic scale."""
    most = curve[-1][0]
    lowest, highest = (math.log(edge(loss for _, loss in curve)) for edge in (min, max))

    def place(tokens: float, loss: float) -> Point:
        x = MARGIN + (WIDTH - 2 * MARGIN) * tokens / most
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (math.log(loss) - lowest) / ((highest - lowest) or 1.0)
        return round(x, 1), round(y, 1)

    line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in curve))
    labels = [_text(MARGIN - 6, place(0, loss)[1] + 4, f"{loss:.2f}", "end") for loss in _marks(curve)]
    labels += [
        _text(MARGIN + (WIDTH - 2 * MARGIN) * part / 4, HEIGHT - MARGIN + 18, f"{most * part / 4e6:.1f}", "middle")
        for part in range(5)
    ]
    title = _text(WIDTH / 2, HEIGHT - 8, "million tokens", "middle") + _text(WIDTH / 2, 24, "training loss", "middle")
    frame = (
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}" '
        'fill="none" stroke="#bbb"/>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#777">\n'
        f"{frame}\n{title}\n{''.join(labels)}\n"
        f'<polyline points="{line}" fill="none" stroke="#2a78c8" stroke-width="1.5"/>\n</svg>\n'
    )


def draw(log: Path, picture: Path) -> None:
    """Write the picture of a training log."""
    picture.write_text(svg(points(log.read_text(encoding="utf-8"))), encoding="utf-8")


def _marks(curve: list[Point]) -> list[float]:
    """Return five losses at even distances on the logarithmic scale."""
    lowest, highest = min(loss for _, loss in curve), max(loss for _, loss in curve)
    return [lowest * (highest / lowest) ** (part / 4) for part in range(5)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
