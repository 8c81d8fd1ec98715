"""Flags that name the columns of rows that ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tinychat.rows.columns import RowColumns
from tinychat.rows.sources import RowReader

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FLAGS = (
    click.option("--prompt-column", metavar="NAME", help="Column of the prompt, a text or messages [default: prompt]"),
    click.option(
        "--template",
        metavar="TEXT",
        help='The prompt, with names of columns in braces: "Summarise: {text}"',
    ),
    click.option(
        "--setting-column",
        "setting_columns",
        metavar="NAME",
        multiple=True,
        help="Column with a setting of its row, such as max_tokens or seed; repeatable",
    ),
)


def column_flags(command: _Function) -> _Function:
    """Add --prompt-column, --template and --setting-column to a command."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def columns_of(
    rows: RowReader, prompt: str | None, template: str | None, settings: tuple[str, ...]
) -> RowColumns | None:
    """Return the columns that the flags name; None for lines with keys of their own, when no flag is given."""
    if template is not None or prompt or settings or any(file.format.is_table for file in rows.files):
        return RowColumns(prompt or "prompt", template, settings)
    return None
