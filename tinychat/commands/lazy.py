"""The commands, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from tinychat.held_signals import held_signals

WHERE = {
    "chat": "chat",
    "complete": "complete",
    "log": "log",
    "batch": "batch",
    "serve": "serve",
    "convert": "convert",
    "pull": "store",
    "models": "store.list_models",
    "rm": "store",
    "bench": "bench",
    "perplexity": "perplexity",
    "doctor": "doctor",
    "show": "show",
    "config": "config",
    "completion": "completion",
}
"""The file of `tinychat.commands` that has a command, and the function's name where that is another."""


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name; a mapping that knows all names, and imports what it is asked for."""

    def __init__(self) -> None:
        self._found: dict[str, click.Command | None] = dict.fromkeys(WHERE)

    def __getitem__(self, name: str) -> click.Command:
        found = self._found[name]
        if found is None:
            file, _, function = WHERE[name].partition(".")
            # Few libraries expect Ctrl-C while they are imported.
            with held_signals():
                found = getattr(import_module(f"tinychat.commands.{file}"), function or name)
            self._found[name] = found
        assert found is not None
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)
