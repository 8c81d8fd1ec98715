"""tinychat bench: how fast a model runs on this machine."""

from __future__ import annotations

from typing import Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import LoadOptions, load_flags


@click.command()
@click.argument("model", required=False)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="TOKENS",
    help="Length of the prompt that is read",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    metavar="TOKENS",
    help="Tokens that are decoded after it",
)
@load_flags
@click.pass_obj
def bench(load: Loader, /, model: str | None, prompt_tokens: int, new_tokens: int, **flags: Any) -> None:
    """Measure how fast MODEL runs.

    Prints the rates of prefill and decode; the last line of stdout is one JSON object.
    """
    from tinychat.bench import main

    main(load(model, LoadOptions(**flags)), prompt_tokens=prompt_tokens, new_tokens=new_tokens)
