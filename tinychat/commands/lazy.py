"""The commands by name, each imported when it is first looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

import click

from tinychat.held_signals import held_signals

_MODULES = {
    "chat": "chat",
    "complete": "complete",
    "log": "log",
    "batch": "batch",
    "serve": "serve",
    "convert": "convert",
    "pull": "store",
    "models": "store",
    "rm": "store",
    "bench": "bench",
    "perplexity": "perplexity",
    "doctor": "doctor",
    "show": "show",
    "config": "config",
    "mcp": "mcp",
    "completion": "completion",
}
"""The module of `tinychat.commands` that defines each command."""


class LazyCommands(Mapping[str, click.Command]):
    """Commands by name; only looking one up imports its module."""

    def __getitem__(self, name: str) -> click.Command:
        return _command(name)

    def __contains__(self, name: object) -> bool:
        return name in _MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _command(name: str) -> click.Command:
    module = _MODULES[name]
    # Few libraries expect Ctrl-C while they are imported.
    with held_signals():
        found: click.Command = getattr(import_module(f"tinychat.commands.{module}"), name)
    return found
