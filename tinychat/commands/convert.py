"""tinychat convert: a Hugging Face checkpoint becomes a model folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from tinychat.commands.options import QuantType, flag_problem
from tinychat.commands.progress import progress_bar
from tinychat.errors import FieldError
from tinychat.store.local import code_lines, quality_lines, summary_line


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--quant",
    type=QuantType(),
    default=None,
    help="Number format of the weights; native: the checkpoint's own codes, the default where it has any,"
    " as GGUF files, and no other option says how to convert; int4 otherwise",
)
@click.option(
    "--group-size",
    type=click.Choice([32, 64, 128]),
    default=32,
    show_default=True,
    help="Weights that share one scale",
)
@click.option(
    "--method",
    type=click.Choice(["plain", "importance", "gptq"]),
    default="gptq",
    show_default=True,
    help="How int4 codes are chosen: each weight by itself, by how much its inputs weigh, or with errors passed on;"
    " all but plain look at texts, and even out the activations of int8",
)
@click.option(
    "--bits",
    default="auto",
    show_default=True,
    metavar="NUMBER",
    help="Most bits of an int4 model's weight on average, from 4.25 on",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to look at the model with; it writes its own when omitted",
)
@click.option("--no-check", is_flag=True, help="Do not compare the result with the checkpoint")
@click.pass_context
def convert(
    context: click.Context,
    source: str,
    target: Path,
    quant: str | None,
    group_size: int,
    method: str,
    bits: str,
    calibration: Path | None,
    no_check: bool,
) -> None:
    """Make a model folder of a checkpoint.

    SRC is a checkpoint folder, a GGUF file or a Hugging Face repo id; the model folder DST must not exist.
    """
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.api import convert as convert_checkpoint
    from tinychat.conversion.pipeline import check_together

    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    try:
        check_together(quant or "int4", method, given)
    except FieldError as error:
        raise click.UsageError(flag_problem(error, [context.command])) from None
    with progress_bar(f"converting to {quant}" if quant else "converting") as progress:
        folder = convert_checkpoint(
            source,
            target,
            quant,
            group_size,
            progress,
            method=method,
            bits=bits,
            calibration=calibration,
            check=not no_check,
        )
    for line in [*code_lines(folder), *quality_lines(folder)]:
        print(line, file=sys.stderr)
    print(f"written: {folder}: {summary_line(folder)}", file=sys.stderr)
    print(f"chat with it: tinychat {shlex.quote(str(target))}", file=sys.stderr)
