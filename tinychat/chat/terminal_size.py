"""How large the terminal is."""

from __future__ import annotations

import os
from typing import TextIO

_USUAL_SIZE = (80, 24)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of the terminal behind `stream`, or what is usual."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return _USUAL_SIZE
    return columns or _USUAL_SIZE[0], rows or _USUAL_SIZE[1]
