"""Redrawing of the prompt after a change of the terminal's width, without remains of the old one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.screen import Screen

# Set by terminals that cut lines which no longer fit; nearly all others wrap them.
_CUTTING = ("XTERM_VERSION", "STY")


def follow_size(app: Application[Any], environment: Mapping[str, str]) -> None:
    """Let the prompt of `app` be redrawn after a change of size from the row where the terminal has moved it.

    By itself it moves up as many rows as it has drawn, even if the terminal has wrapped them since.
    """
    # tmux wraps lines in any terminal.
    wraps_lines = "TMUX" in environment or not any(name in environment for name in _CUTTING)
    redraw = app._on_resize
    drawn: Size | None = None

    def draw_resized() -> None:
        nonlocal drawn
        size, screen = app.output.get_size(), app.renderer.last_rendered_screen
        if size == drawn:
            # Each change is reported twice: by a signal and by polling.
            return
        if screen is not None and wraps_lines:
            cursor = screen.get_cursor_position(app.layout.current_window)
            app.output.cursor_up(added_rows(screen, cursor.y, cursor.x, size.columns))
        drawn = size
        redraw()

    def forget_other_size(_app: object) -> None:
        nonlocal drawn
        if app.output.get_size() != drawn:
            drawn = None

    app.after_render += forget_other_size
    # There is no public name for it.
    app._on_resize = draw_resized  # type: ignore[method-assign]


def added_rows(screen: Screen, row: int, column: int, columns: int) -> int:
    """Return how many rows a terminal of `columns` adds by wrapping the lines above and before the cursor."""
    above = (screen.data_buffer[index] for index in range(row))
    widths = (max((x + cell.width for x, cell in line.items() if cell.char != " "), default=1) for line in above)
    return sum((width - 1) // columns for width in widths) + max(column - 1, 0) // columns
