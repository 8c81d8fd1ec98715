"""tinychat config: the user's configuration file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from tinychat.configuration import STARTER, Configuration, configuration_path, read_configuration
from tinychat.errors import ConfigurationError
from tinychat.user_folders import make_folder


@click.command()
@click.option("--init", "begins", is_flag=True, help="Make a file to begin with, in which every line is a comment")
@click.option("--path", "only_path", is_flag=True, help="Show only where the file is, or would be")
def config(begins: bool, only_path: bool) -> None:
    """Show the configuration file, and what it says.

    It is TOML: a default model, settings, a system prompt; settings of single models in [models."NAME"]; roles for
    `tinychat chat -r NAME` in [roles.NAME]; prompts for `tinychat -t NAME` in [templates.NAME]; other names for models
    in [aliases]. What comes first: flags, the model's section, the template, the role, the general settings, the
    model's own advice, tinychat's defaults.
    """
    path = configuration_path()
    if path is None:
        raise ConfigurationError("there is no place for a configuration file: set TINYCHAT_HOME to a folder")
    if only_path:
        print(path)
    elif begins:
        try:
            make_folder(path.parent)
            with path.open("x", encoding="utf-8") as file:
                file.write(STARTER)
        except FileExistsError:
            raise ConfigurationError(f"{path} is there already: edit it") from None
        print(path)
        print("written; take the # away before what you want", file=sys.stderr)
    elif not path.exists():
        print(path)
        print("there is no such file yet: `tinychat config --init` makes one to begin with", file=sys.stderr)
    else:
        found = read_configuration()
        print(path)
        for line in _lines(found):
            print(line)


def _lines(found: Configuration) -> Iterator[str]:
    general = ({} if found.model is None else {"model": found.model}) | dict(found.general)
    for title, values in (
        ("", general),
        *((f'models."{name}"', values) for name, values in found.models.items()),
        *((f"roles.{name}", values) for name, values in found.roles.items()),
        *((f"templates.{name}", values) for name, values in found.templates.items()),
        ("aliases", found.aliases),
    ):
        if values:
            yield from _section(title, values)


def _section(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    indent = ""
    if title:
        yield f"[{title}]"
        indent = "  "
    width = max(map(len, values))
    for key, value in values.items():
        yield f"{indent}{key:<{width}}  {value!r}"
