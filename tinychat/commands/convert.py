"""tinychat convert: convert a checkpoint to a model folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tinychat.commands.options import PATH, QuantType, flag_problem
from tinychat.commands.progress import progress_bar
from tinychat.errors import FieldError
from tinychat.store.local import code_lines, next_line, quality_lines, summary_line


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=PATH)
@click.option(
    "--quant",
    type=QuantType(),
    help="Number format of the weights; native: the quantized weights of the checkpoint as they are, the default for"
    " checkpoints that have any, as GGUF files, without other options of the conversion; else int4, or int8 of a"
    " drafter",
)
@click.option(
    "--group-size", type=click.Choice([32, 64, 128]), default=32, show_default=True, help="Weights that share one scale"
)
@click.option(
    "--method",
    type=click.Choice(["plain", "importance", "gptq"]),
    default="gptq",
    show_default=True,
    help="Quantization algorithm of int4: round each weight, weigh errors by the inputs, or GPTQ, which compensates"
    " errors; all but plain calibrate on text, and smooth the activations of int8",
)
@click.option(
    "--bits",
    default="auto",
    show_default=True,
    metavar="NUMBER",
    help="Maximum bits per weight of an int4 model on average, 4.25 or more",
)
@click.option(
    "--calibration", type=PATH, metavar="FILE", help="Text for calibration; default: text that the model writes itself"
)
@click.option(
    "--adapter",
    metavar="FOLDER",
    help="LoRA adapter to merge with the weights, of PEFT or mlx-lm: its folder or Hugging Face repo id; or the name of"
    " a task that the checkpoint has an adapter for",
)
@click.option(
    "--mmproj",
    type=PATH,
    metavar="FILE",
    help="GGUF file by which the model of a GGUF file sees images; default: the one in the same folder, if there is one"
    " that fits",
)
@click.option("--no-check", is_flag=True, help="Skip the comparison of the result with the checkpoint")
@click.pass_context
def convert(
    context: click.Context, /, source: str, target: Path, quant: str | None, method: str, no_check: bool, **flags: Any
) -> None:
    """Convert the checkpoint SRC to the model folder DST.

    SRC is a checkpoint folder, a GGUF file or a Hugging Face repo id; DST must not exist.
    """
    from tinychat.api import convert as convert_checkpoint
    from tinychat.conversion.pipeline import check_together

    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    try:
        check_together(quant or "int4", method, given)
    except FieldError as error:
        raise click.UsageError(flag_problem(error, [context.command])) from None
    try:
        with progress_bar(f"converting to {quant}" if quant else "converting") as progress:
            folder = convert_checkpoint(
                source, target, quant, progress=progress, method=method, check=not no_check, **flags
            )
    except KeyboardInterrupt:
        print("stopped: the same command continues from what is finished", file=sys.stderr)
        raise
    for line in [*code_lines(folder), *quality_lines(folder)]:
        print(line, file=sys.stderr)
    print(f"written: {folder}: {summary_line(folder)}", file=sys.stderr)
    print(next_line(folder, shlex.quote(str(target))), file=sys.stderr)
