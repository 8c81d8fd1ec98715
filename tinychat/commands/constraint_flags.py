"""The flags --schema and --grammar, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinychat.commands.options import with_options
from tinychat.files import read_text

if TYPE_CHECKING:
    from tinychat.generate.grammar import Grammar

MAX_CONSTRAINT_BYTES = 1 << 20

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--schema",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Let replies be JSON that is valid under this JSON schema; needs the package llguidance",
    ),
    click.option(
        "--grammar",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Let replies follow this grammar, in Lark or GBNF; needs the same",
    ),
)


def constraint_flags(command: _Function) -> _Function:
    """Give `command` the flags --schema and --grammar."""
    return with_options(command, _OPTIONS)


@dataclass(frozen=True)
class ConstraintFiles:
    """The files that --schema and --grammar name."""

    schema: Path | None
    grammar: Path | None


def read_grammar(files: ConstraintFiles) -> Grammar | None:
    """Return the grammar that one of the files holds; None without a file.

    Raises
    ------
    click.UsageError
        If there are both.
    TextError, SettingError
        If the file cannot be read, is not understood, or the library for it is missing.
    """
    schema, grammar = files.schema, files.grammar
    if schema is not None and grammar is not None:
        raise click.UsageError("--schema and --grammar exclude each other: leave out one")
    # Imported where it is needed: `tinychat --help` must not wait for numpy.
    if schema is not None:
        from tinychat.generate.grammar import Grammar

        return Grammar.from_schema(read_text(schema, MAX_CONSTRAINT_BYTES), str(schema))
    if grammar is not None:
        from tinychat.generate.grammar import Grammar

        return Grammar.from_text(read_text(grammar, MAX_CONSTRAINT_BYTES), str(grammar))
    return None
