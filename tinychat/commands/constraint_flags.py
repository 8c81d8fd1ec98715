"""The flags --schema and --grammar, and the grammar that they give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinychat.commands.options import PATH, together
from tinychat.files import read_text

if TYPE_CHECKING:
    from tinychat.generate.grammar import Grammar

MAX_CONSTRAINT_BYTES = 1 << 20
constraint_flags = together(
    click.option(
        "--schema",
        type=PATH,
        metavar="FILE",
        help="Constrain replies to JSON that this JSON schema allows; needs the package llguidance",
    ),
    click.option(
        "--grammar",
        type=PATH,
        metavar="FILE",
        help="Constrain replies to this grammar, in Lark or GBNF; needs the package llguidance",
    ),
)


def read_grammar(schema: Path | None, grammar: Path | None) -> Grammar | None:
    """Return the grammar of one of the files, None without a file."""
    return read_constraint(schema, grammar)[0]


def read_constraint(schema: Path | None, grammar: Path | None) -> tuple[Grammar | None, str | None]:
    """Return the grammar of one of the files, and its text: a pipe is read once; None twice without a file."""
    if schema is not None and grammar is not None:
        raise click.UsageError("--schema and --grammar exclude each other: leave out one")
    file = schema or grammar
    if file is None:
        return None, None
    from tinychat.generate.grammar import Grammar

    read, text = Grammar.from_text if schema is None else Grammar.from_schema, read_text(file, MAX_CONSTRAINT_BYTES)
    return read(text, str(file)), text
