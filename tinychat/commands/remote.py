"""The flag --server: a model that a server has loaded writes the replies."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tinychat.commands.constraint_flags import MAX_CONSTRAINT_BYTES
from tinychat.commands.options import together
from tinychat.files import read_text
from tinychat.json_file import read_named_json
from tinychat.settings import LINE, SETTINGS, names
from tinychat.terminal.safe_text import one_safe_line

if TYPE_CHECKING:
    from tinychat.client.remote_model import RemoteModel
    from tinychat.generate.model import Model
    from tinychat.generate.precedence import Preferences, Resolved

_EFFORTS = {True: "medium", False: "none"}

server_flags = together(
    click.option("--server", metavar="URL", help="Ask the model of this server, such as http://127.0.0.1:8080"),
    click.option(
        "--api-key", metavar="KEY", envvar="TINYCHAT_API_KEY", help="Key for --server  [default: $TINYCHAT_API_KEY]"
    ),
)


def remote_model(url: str, key: str | None, named: str | None, preferences: Preferences) -> RemoteModel:
    """Return the model of a server; a `UsageError` where a flag is for a model of this process."""
    _refuse_flags(preferences, (*names("load"), "logprobs"))
    from tinychat.client.api import Api
    from tinychat.client.remote_model import RemoteModel

    return RemoteModel(Api(url, key), named)


def remote_chat_models(url: str, key: str | None, preferences: Preferences) -> Callable[[str | None], Model]:
    """Return a function that opens a model of a server by name, for chats; errors are those of `remote_model`."""
    _refuse_flags(preferences, (*names("load"), "cache_disk"))
    from tinychat.client.api import Api
    from tinychat.client.chat_model import RemoteChatModel

    api = Api(url, key)
    # It has what a conversation asks of a model: conversations know nothing of servers.
    return lambda name: cast("Model", RemoteChatModel(api, name))


def _refuse_flags(preferences: Preferences, local: Sequence[str]) -> None:
    for name in local:
        if name in preferences.flags:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be used with --server: the model runs there")


def remote_fields(found: Resolved, schema: Path | None, grammar: Path | None) -> dict[str, Any]:
    """Return the fields of a request: settings that somebody gave, and what constrains the reply."""
    fields = {name: found.values[name] for name in names(entry=LINE) if name in found.values}
    fields = {(*SETTINGS[name].openai, name)[0]: value for name, value in fields.items()}
    thinking = found.thinking
    if thinking.wanted and thinking.budget is not None:
        raise click.UsageError("--think cannot be a number with --server: use on or off")
    if thinking.wanted is not None:
        fields["reasoning_effort"] = _EFFORTS[thinking.wanted]
    if schema is not None and grammar is not None:
        raise click.UsageError("--schema and --grammar exclude each other: leave out one")
    if grammar is not None:
        fields["grammar"] = read_text(grammar, MAX_CONSTRAINT_BYTES)
    if schema is not None:
        form = {"name": "reply", "schema": read_named_json(schema, MAX_CONSTRAINT_BYTES)}
        fields["response_format"] = {"type": "json_schema", "json_schema": form}
    return fields


def tell_of_server(model: str, command: str) -> None:
    """Tell a person that a running server has the model that is about to be loaded once more."""
    if not sys.stderr.isatty():
        return
    from tinychat.client.running_servers import server_of

    if (url := server_of(model)) is not None:
        line = f"a server has {model} loaded: tinychat {command} --server {url} starts at once"
        print(one_safe_line(line), file=sys.stderr)
