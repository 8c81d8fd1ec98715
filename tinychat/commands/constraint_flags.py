"""The flags --schema and --grammar, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinychat.files import read_text

if TYPE_CHECKING:
    from tinychat.generate.grammar import Grammar

MAX_CONSTRAINT_BYTES = 1 << 20

_Function = TypeVar("_Function", bound=Callable[..., Any])

_schema_flag = click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Let replies be JSON that is valid under this JSON schema; needs the package llguidance",
)
_grammar_flag = click.option(
    "--grammar",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Let replies follow this grammar, in Lark or GBNF; needs the same",
)


def constraint_flags(command: _Function) -> _Function:
    """Give `command` the flags --schema and --grammar."""
    return _schema_flag(_grammar_flag(command))


def read_grammar(schema: Path | None, grammar: Path | None) -> Grammar | None:
    """Return the grammar that one of the files holds; None without a file.

    Raises
    ------
    click.UsageError
        If there are both.
    TextError, SettingError
        If the file cannot be read, is not understood, or the library for it is missing.
    """
    if schema is not None and grammar is not None:
        raise click.UsageError("--schema and --grammar exclude each other: leave out one")
    file = schema or grammar
    if file is None:
        return None
    # Imported where it is needed: `tinychat --help` must not wait for numpy.
    from tinychat.generate.grammar import Grammar

    read = Grammar.from_text if schema is None else Grammar.from_schema
    return read(read_text(file, MAX_CONSTRAINT_BYTES), str(file))
