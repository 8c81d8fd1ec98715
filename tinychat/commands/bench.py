"""tinychat bench: the speed of a model on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader, given_settings
from tinychat.commands.options import load_flags, model_argument
from tinychat.commands.progress import progress_bar
from tinychat.configuration import resolve_alias
from tinychat.generate.precedence import Preferences
from tinychat.models.shapes import SHAPES, config_of
from tinychat.setting_kinds import whole_number
from tinychat.settings import LoadSettings

if TYPE_CHECKING:
    from tinychat.bench.actors import ActorRates
    from tinychat.generate.model import Model

_ACTORS, _MOST_ACTORS = "--actors", 256


class _BenchCommand(click.Command):
    """Takes several numbers after --actors, of which click would take all but the first for MODEL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the numbers, then parse the arguments."""
        joined: list[str] = []
        is_list = False
        for word in args:
            is_more = is_list and word.isdecimal()
            if is_more and joined[-1] != _ACTORS:
                joined[-1] += f",{word}"
            else:
                joined.append(word)
            is_list = is_more or word == _ACTORS
        return super().parse_args(ctx, joined)


class _Counts(click.ParamType):  # type: ignore[type-arg]
    """The type of --actors: numbers of processes, ascending."""

    name = "N..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse numbers with commas or spaces between them."""
        words = value.replace(",", " ").split()
        numbers = {whole_number(word) or 0 for word in words}
        if not numbers or not all(0 < number <= _MOST_ACTORS for number in numbers):
            self.fail(f"{value!r} are not numbers from 1 to {_MOST_ACTORS}, as in 1 2 4", param, ctx)
        return sorted(numbers)


@click.command(cls=_BenchCommand)
@model_argument()
@click.option("--random", "shape", type=click.Choice(list(SHAPES)), help="Measure random weights of this shape")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Number of measurements, for medians"
)
@click.option("--profile", "with_profile", is_flag=True, help="Also time each stage of the forward pass")
@click.option("--batches", is_flag=True, help="Also measure many replies at once, for `tinychat plan`")
@click.option(
    _ACTORS,
    type=_Counts(),
    metavar="N...",
    help="Measure only this: so many processes that answer rows beside each other, and share the threads",
)
@load_flags
@click.pass_obj
def bench(
    load: Loader,
    /,
    model: str | None,
    shape: str | None,
    rounds: int,
    with_profile: bool,
    batches: bool,
    actors: list[int] | None,
    **flags: Any,
) -> None:
    """Measure how fast MODEL runs.

    Measures prefill, decode at several depths, start-up and memory, next to the limits of the machine. Stdout gets one
    JSON object, stderr a table.

    `--actors 1 2 4` measures how many processes this machine should run for `tinychat batch --shard`, Ray or Spark: the
    tokens a second of one, two and four of them, in turns, and their memory, in which weights that all map count once.
    """
    if model is not None and shape is not None:
        raise click.UsageError("MODEL and --random exclude each other: leave out one")
    if actors is not None and (with_profile or batches):
        raise click.UsageError("--actors measures nothing else: leave out --profile and --batches")
    from tinychat.bench.measure import Plan

    plan, options = Plan(rounds=rounds), given_settings(flags)
    with ExitStack() as stack:
        if shape is not None:
            model = str(_random_folder(shape, stack))
        if actors is not None:
            options = replace(options, context=options.context or plan.context_size)
            return _bench_actors(resolve_alias(model), actors, rounds, options)
        loaded = load(model, options)
        loaded.check_writes()
        if options.context is None:
            hold(loaded, plan.context_size)
        from tinychat.bench.report import bench as measure

        progress = stack.enter_context(progress_bar("measuring"))
        found = measure(loaded, plan, threads=options.threads, kv=options.kv, progress=progress)
        if with_profile:
            found["profile"] = _profile(loaded)
        if batches:
            found["batches"] = _batches(loaded)
    _write_table(found)
    print(json.dumps(found))


def hold(model: Model, positions: int) -> None:
    """Give the context so many positions, or as many as the model has vectors for."""
    config = model.engine.config
    model.resize(min(positions, config.max_position_embeddings) if config.learned_positions else positions)


def _random_folder(shape: str, stack: ExitStack) -> Path:
    from tinychat.bench.random_model import write_random_model

    print(f"writing random weights of the shape {shape}", file=sys.stderr)
    parent = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinychat-bench-"))
    folder = Path(parent, shape)
    folder.mkdir()
    return write_random_model(config_of(shape), folder)


def _bench_actors(model: str | None, counts: list[int], rounds: int, options: LoadSettings) -> None:
    """Measure numbers of processes; write a table, and one JSON object."""
    from tinychat.api import locate
    from tinychat.bench.actors import best_of, measure_actors
    from tinychat.store.default_model import default_model

    with progress_bar(f"converting {model} (once)") as converting:
        folder = locate(model or default_model(), converting)
    with progress_bar("measuring") as progress:
        found = measure_actors(folder, counts, rounds, threads=options.threads, kv=options.kv, progress=progress)
    best = best_of(found)
    _write_actors(folder.name, found, best)
    actors = [asdict(each) for each in found]
    print(json.dumps({"model": folder.name, "rounds": rounds, "actors": actors, "best": best.actors}))


def _write_actors(name: str, found: list[ActorRates], best: ActorRates) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("processes", "threads of each", "tok/s", "MiB of memory", "", title=name, title_justify="left")
    for each in found:
        memory = "unknown" if each.memory_mib is None else f"{each.memory_mib:,.0f}"
        mark = "best" if each == best else ""
        table.add_row(str(each.actors), str(each.threads), f"{each.tok_s:,.1f}", memory, mark)
    Console(stderr=True).print(table)


def _batches(model: Model) -> dict[str, Any]:
    """Measure many replies at once, with the settings that the model's makers advise."""
    from tinychat.bench.batch_rates import measure_batches

    request = Preferences().resolve(advice=model.own_defaults).request
    with progress_bar("measuring many replies at once") as progress:
        return measure_batches(model, request, progress=progress).as_json()


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
    for level, rate in found.get("batches", {}).get("new_tok_s", {}).items():
        table.add_row(f"{level} at once", f"{rate:,.1f} tok/s", "new tokens; those of prompts are counted apart")
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
