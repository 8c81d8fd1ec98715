"""tinychat perplexity: how well a model predicts a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import LoadOptions, load_flags


@click.command()
@click.argument("model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--against", metavar="OTHER", help="Compare with this model: KL divergence, top-1 agreement")
@load_flags
@click.pass_obj
def perplexity(load: Loader, /, model: str, file: Path, against: str | None, **flags: Any) -> None:
    """Measure how well MODEL predicts FILE.

    Prints the perplexity of the text.
    """
    from tinychat.perplexity import main

    options = LoadOptions(**flags)
    other = None if against is None else load(against, options)
    main(load(model, options), file, against=other)
