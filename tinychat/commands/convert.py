"""tinychat convert: a Hugging Face checkpoint becomes a model folder."""

from __future__ import annotations

from pathlib import Path

import click

from tinychat.commands.progress import progress_bar


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--quant",
    type=click.Choice(["int4", "int8", "f32"]),
    default="int4",
    show_default=True,
    help="Number format of the weights",
)
@click.option(
    "--group-size",
    type=click.Choice([32, 64, 128]),
    default=32,
    show_default=True,
    help="Weights that share one scale",
)
def convert(source: str, target: Path, quant: str, group_size: int) -> None:
    """Make a model folder of a checkpoint.

    SRC is a checkpoint folder or a Hugging Face repo id; the model folder DST must not exist.
    """
    # Imported here: `tinychat --help` shall not wait for it.
    from tinychat.locate import convert as convert_checkpoint

    with progress_bar(f"converting to {quant}") as progress:
        convert_checkpoint(source, target, quant, group_size, progress)
