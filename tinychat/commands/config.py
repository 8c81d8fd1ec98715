"""tinychat config: the user's configuration file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from tinychat.configuration import STARTER, Configuration, configuration_path, read_configuration
from tinychat.errors import ConfigurationError
from tinychat.files import write_new
from tinychat.user_folders import make_folder


@click.command()
@click.option("--init", "writes_starter", is_flag=True, help="Write a starter file in which every line is a comment")
@click.option("--path", "only_path", is_flag=True, help="Show only the path of the file")
def config(writes_starter: bool, only_path: bool) -> None:
    """Show the path and the settings of the configuration file.

    The file is TOML: a default model, settings and a system prompt; settings for single models in [models."NAME"];
    roles for `tinychat chat -r NAME` in [roles.NAME]; prompt templates for `tinychat -t NAME` in [templates.NAME];
    other names of models in [aliases]; servers of tools in [mcp.servers.NAME]. Order of precedence: flags, the model's
    section, the template, the role, the general settings, the recommendations of the model, tinychat's defaults.
    """
    path = configuration_path()
    if path is None:
        raise ConfigurationError("no folder for the configuration file: set TINYCHAT_HOME to one")
    if only_path:
        print(path)
    elif writes_starter:
        try:
            make_folder(path.parent)
            write_new(path, STARTER)
        except FileExistsError:
            raise ConfigurationError(f"{path} exists already: edit it") from None
        print(path)
        print("written; remove the # before the settings that you want", file=sys.stderr)
    elif not path.exists():
        print(path)
        print("the file does not exist yet: `tinychat config --init` writes a starter file", file=sys.stderr)
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
        ("mcp.servers", {name: server.line for name, server in found.servers.items()}),
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
