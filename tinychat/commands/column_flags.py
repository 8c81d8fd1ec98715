"""Flags that name the columns of rows that ask."""

from __future__ import annotations

import click

from tinychat.commands.options import together
from tinychat.rows.columns import RowColumns
from tinychat.rows.sources import RowReader

column_flags = together(
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


def columns_of(
    rows: RowReader, prompt: str | None, template: str | None, settings: tuple[str, ...]
) -> RowColumns | None:
    """Return the columns that the flags name; None for lines with keys of their own, when no flag is given."""
    if template is not None or prompt or settings or any(file.format.is_table for file in rows.files):
        return RowColumns(prompt or "prompt", template, settings)
    return None
