"""tinychat bench: the speed of a model on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tinychat.commands.loading import Loader, given_settings
from tinychat.commands.options import load_flags, model_argument
from tinychat.commands.progress import progress_bar
from tinychat.models.shapes import SHAPES, config_of


@click.command()
@model_argument()
@click.option("--random", "shape", type=click.Choice(list(SHAPES)), help="Measure random weights of this shape")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Number of measurements, for medians"
)
@click.option("--profile", "with_profile", is_flag=True, help="Also time each stage of the forward pass")
@load_flags
@click.pass_obj
def bench(load: Loader, /, model: str | None, shape: str | None, rounds: int, with_profile: bool, **flags: Any) -> None:
    """Measure how fast MODEL runs.

    Measures prefill, decode at several depths, start-up and memory, next to the limits of the machine. Stdout gets one
    JSON object, stderr a table.
    """
    if model is not None and shape is not None:
        raise click.UsageError("MODEL and --random exclude each other: leave out one")
    from tinychat.bench.measure import Plan

    plan, options = Plan(rounds=rounds), given_settings(flags)
    options = replace(options, context=options.context or plan.context_size)
    with ExitStack() as stack:
        if shape is not None:
            model = str(_random_folder(shape, stack))
        loaded = load(model, options)
        from tinychat.bench.report import bench as measure

        progress = stack.enter_context(progress_bar("measuring"))
        found = measure(loaded, plan, threads=options.threads, kv=options.kv, progress=progress)
        if with_profile:
            found["profile"] = _profile(loaded)
    _write_table(found)
    print(json.dumps(found))


def _random_folder(shape: str, stack: ExitStack) -> Path:
    from tinychat.bench.random_model import write_random_model

    print(f"writing random weights of the shape {shape}", file=sys.stderr)
    parent = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinychat-bench-"))
    folder = Path(parent, shape)
    folder.mkdir()
    return write_random_model(config_of(shape), folder)


def _profile(model: Any) -> dict[str, Any]:
    """Profile one token and one chunk of tokens, each after 512."""
    from tinychat.bench.profile import profile

    chunk = min(model.sequence.chunk_size, model.context_size)
    start = min(512, model.context_size - chunk)
    return {"decode": profile(model.sequence, 1, start), "prefill": profile(model.sequence, chunk, start)}


def _write_profile(console: Any, title: str, shares: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title, "ms", "share", "GB/s", "G multiply-adds/s", title_justify="left")
    for row in shares:
        rates = (f"{row[what] / row['seconds'] / 1e9:.1f}" if row[what] else "" for what in ("bytes", "multiply_adds"))
        table.add_row(row["kernel"], f"{row['seconds'] * 1e3:.3f}", f"{row['share']:.1%}", *rates)
    console.print(table)


def _write_table(found: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{found['model']}, {found['quantization']}, {found['threads']} threads, {found['instruction_set']}"
    table = Table("", "", "of the machine's", title=title, title_justify="left", show_header=False)
    for length, rate in found["prefill_tok_s"].items():
        share = found["prefill_peak_share"][length]
        table.add_row(f"prefill {length}", f"{rate:,.0f} tok/s", f"{share:.0%} of the int8 peak")
    for depth, rate in found["decode_tok_s"].items():
        share = found["decode_bandwidth_share"][depth]
        table.add_row(f"decode at depth {depth}", f"{rate:,.1f} tok/s", f"{share:.0%} of the bandwidth")
    table.add_row("start to first token", f"{found['first_token_s']:.2f} s", f"load {found['load_s']:.2f} s")
    table.add_row("peak memory", f"{found['peak_mib']:,.0f} MiB", f"weights {found['weights_mib']:,.0f} MiB")
    table.add_row("read bandwidth", f"{found['bandwidth_gb_s']:.1f} GB/s", "measured in the same run")
    table.add_row("int8 peak", f"{found['int8_peak_gmac_s']:,.0f} G/s", "multiply-adds, measured in the same run")
    console = Console(stderr=True)
    console.print(table)
    for part, shares in found.get("profile", {}).items():
        _write_profile(console, f"{part}, {found['threads']} threads", shares)
    for note in found["notes"]:
        console.print(note, markup=False)
