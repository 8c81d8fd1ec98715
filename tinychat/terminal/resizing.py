"""A prompt in a terminal whose width changes: it is drawn anew, and nothing of it is left where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout.screen import Screen

# Set by terminals that cut lines which no longer fit, where nearly all others break them into several rows.
_CUTTING = ("XTERM_VERSION", "STY")


def follow_size(app: Application[Any], environment: Mapping[str, str]) -> None:
    """Let a prompt, drawn anew after a change of size, begin in the row where the terminal has moved it.

    Parameters
    ----------
    app : Application
        Moves up as many rows as it has drawn, whatever the terminal has made of them.
    environment : mapping
        Says which terminal it is: tmux has its own way within any other.
    """
    breaks_lines = "TMUX" in environment or not any(name in environment for name in _CUTTING)
    draw_anew = app._on_resize
    drawn: Size | None = None

    def draw_resized() -> None:
        nonlocal drawn
        size, screen = app.output.get_size(), app.renderer.last_rendered_screen
        if size == drawn:
            # A signal and a look at the size, twice a second, both tell of each change.
            return
        if screen is not None and breaks_lines:
            cursor = screen.get_cursor_position(app.layout.current_window)
            app.output.cursor_up(added_rows(screen, cursor.y, cursor.x, size.columns))
        drawn = size
        draw_anew()

    def note_other_size(_app: object) -> None:
        nonlocal drawn
        if app.output.get_size() != drawn:
            drawn = None

    app.after_render += note_other_size
    # There is no public name for it.
    app._on_resize = draw_resized  # type: ignore[method-assign]


def added_rows(screen: Screen, row: int, column: int, columns: int) -> int:
    """Return how many rows more a terminal of so many columns needs for what was drawn above and before the cursor."""
    above = (screen.data_buffer[index] for index in range(row))
    widths = (max((x + cell.width for x, cell in line.items() if cell.char != " "), default=1) for line in above)
    return sum((width - 1) // columns for width in widths) + max(column - 1, 0) // columns
