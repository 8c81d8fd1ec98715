"""tinychat perplexity: how well a model predicts a text."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader, given_settings
from tinychat.commands.options import PATH, load_flags, model_argument
from tinychat.commands.progress import progress_bar
from tinychat.files import read_text

if TYPE_CHECKING:
    from tinychat.generate.perplexity import Report

DEFAULT_CONTEXT = 512


@click.command()
@model_argument(required=True)
@click.argument("file", type=PATH)
@click.option("--against", metavar="OTHER", help="Also compare with this model: KL divergence, top-1 agreement")
@click.option(
    "--stride",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens that each window scores; default: context / 2",
)
@load_flags
@click.pass_obj
def perplexity(load: Loader, /, model: str, file: Path, against: str | None, stride: int | None, **flags: Any) -> None:
    """Measure how well MODEL predicts FILE.

    The text is read in overlapping windows of --context tokens (default: 512). Stdout gets one JSON object.
    """
    text = read_text(file)
    options = given_settings(flags)
    options = replace(options, context=options.context or DEFAULT_CONTEXT)
    other = None if against is None else load(against, options)
    measured = load(model, options)
    # Imported here: an unreadable file is reported before numpy is loaded.
    from tinychat.generate.perplexity import measure

    with progress_bar(f"reading {file.name}") as progress:
        report = measure(measured, text, stride=stride, against=other, progress=progress)
    _write_summary(report)
    names = {"model": measured.name, "reference": None if other is None else other.name, "file": str(file)}
    print(json.dumps(names | asdict(report)))


def _write_summary(report: Report) -> None:
    print(
        f"perplexity {report.perplexity:.4f} over {report.tokens} tokens "
        f"(context {report.context}, stride {report.stride})",
        file=sys.stderr,
    )
    if report.against is not None:
        print(
            f"reference {report.against.perplexity:.4f}, KL divergence {report.against.kl_divergence:.6f} nats, "
            f"same most likely token {report.against.top1_agreement:.2%}",
            file=sys.stderr,
        )
