"""The commands by name, each imported when it is first looked up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module

import click

from tinychat.held_signals import held_signals

_NAMES = tuple(
    "chat complete log batch plan embed rerank serve convert pull models rm bench perplexity doctor show config mcp "
    "completion".split()
)
_IN_STORE = ("pull", "models", "rm")
"""The commands that `commands.store` defines; each other one has a module of its name."""


class LazyCommands(Mapping[str, click.Command]):
    """Commands by name; only looking one up imports its module."""

    def __getitem__(self, name: str) -> click.Command:
        return _command(name)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


@cache
def _command(name: str) -> click.Command:
    if name not in _NAMES:
        raise KeyError(name)
    module = "store" if name in _IN_STORE else name
    # Few libraries expect Ctrl-C while they are imported.
    with held_signals():
        found: click.Command = getattr(import_module(f"tinychat.commands.{module}"), name)
    return found
