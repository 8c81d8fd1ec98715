"""tinychat serve: a local server for other programs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.constraint_flags import constraint_flags, read_grammar
from tinychat.commands.loading import Loader
from tinychat.commands.options import (
    PATH,
    add_spellings,
    draft_flag,
    load_flags,
    model_argument,
    request_flags,
    setting_flags,
    take_preferences,
)
from tinychat.errors import SettingError
from tinychat.files import read_text
from tinychat.generate.precedence import Preferences
from tinychat.installing import install_command
from tinychat.setting_kinds import seconds_of

if TYPE_CHECKING:
    from tinychat.generate.grammar import Grammar
    from tinychat.generate.model import Model
    from tinychat.generate.request import Request
    from tinychat.serve.model_pool import Load

# As llama-server has them.
_LLAMA_SPELLINGS = {
    "context": ("-c", "--ctx-size"),
    "max_tokens": ("-n", "--n-predict"),
    "threads": ("-t",),
    "draft": ("-md", "--model-draft"),
    "schema": ("-jf", "--json-schema-file"),
    "grammar": ("--grammar-file",),
}
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+")
_LOCAL = ("127.0.0.1", "localhost", "::1")
# Those of the extra.
_PACKAGES = ("llguidance", "starlette", "uvicorn")


@click.command()
@model_argument()
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", show_default=True, help="Address to listen at")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one")
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Key that clients must send; repeatable; also $TINYCHAT_API_KEY",
)
@click.option("--api-key-file", type=PATH, metavar="PATH", help="File with a key on each line")
@click.option("-a", "--alias", metavar="NAME", help="Name of the model in answers")
@click.option("--models", "folder", type=PATH, metavar="DIR", help="Serve each model of this folder by name")
@click.option("--models-max", type=click.IntRange(1, 64), default=1, show_default=True, help="Models in memory at once")
@click.option("--idle", metavar="TIME", help="Unload a model that is unused for so long, such as 10m; default: never")
@click.option(
    "-np", "--parallel", type=click.IntRange(1, 256), default=16, show_default=True, help="Requests answered at once"
)
@click.option(
    "--queue", type=click.IntRange(0), default=256, show_default=True, help="Requests that may wait beside them"
)
@click.option("--cors", "origins", multiple=True, metavar="ORIGIN", help="Let in pages of this origin; repeatable")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Serve this Host, too; repeatable, * all")
@click.option("--open", "opens_page", is_flag=True, help="Open the page of the server in a browser, once it is ready")
@click.option(
    "--ping", type=click.FloatRange(0.1), default=15.0, show_default=True, help="Seconds of silence before a comment"
)
@click.option(
    "--shutdown", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds for replies at the end"
)
@setting_flags("cache_disk", cache_disk="Most disk space for prompts that were read; with 0 a restart reads them again")
@click.option(
    "--no-shared-prefixes", is_flag=True, help="Read each prompt as a whole: timing tells nothing of those of others"
)
@click.option(
    "--slot-save-path",
    "slot_folder",
    type=PATH,
    metavar="DIR",
    help="Let clients save the caches of conversations in this folder, by /slots",
)
@click.option(
    "--allow-pull", is_flag=True, help="Let clients download models of the catalog, by /api/pull of Ollama's API"
)
@click.option("--slots/--no-slots", "shows_slots", default=True, help="Whether /slots tells what runs  [default: yes]")
@click.option("--metrics/--no-metrics", "shows_metrics", default=True, help="Whether to serve /metrics  [default: yes]")
@add_spellings(_LLAMA_SPELLINGS)
@request_flags
@constraint_flags
@load_flags
@draft_flag
@click.pass_obj
def serve(
    load: Loader,
    /,
    model: str | None,
    host: str,
    keys: tuple[str, ...],
    api_key_file: Path | None,
    folder: Path | None,
    models_max: int,
    idle: str | None,
    queue: int,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    ping: float,
    shutdown: float,
    no_shared_prefixes: bool,
    slot_folder: Path | None,
    allow_pull: bool,
    schema: Path | None,
    grammar: Path | None,
    **flags: Any,
) -> None:
    """Serve MODEL to other programs at http://127.0.0.1:8080/v1, and to you at http://127.0.0.1:8080/.

    The endpoints are those of OpenAI, Anthropic, Ollama and llama-server. The same request gets the same
    answer, alone or beside others. A schema or grammar is for requests without one of their own or a
    forced call. Ctrl-C ends the server: replies that are being written may end first.

    The packages of the extra "serve" must be installed: tinychat[serve].
    """
    if model is not None and folder is not None:
        raise click.UsageError("MODEL and --models both say what is served: give one of them")
    all_keys = (*keys, *_keys_of(api_key_file), *filter(None, [os.environ.get("TINYCHAT_API_KEY")]))
    if not all(all_keys):
        raise SettingError("an API key is empty, so anybody would be let in: give another one with --api-key")
    if any(not _ORIGIN.fullmatch(origin) for origin in origins):
        raise click.UsageError('--cors takes origins as browsers send them, such as "http://localhost:3000", or *')
    if not all(key.isascii() and key.isprintable() for key in all_keys):
        raise SettingError("an API key has characters that programs send in different ways: use those of ASCII")
    if slot_folder is not None and not slot_folder.is_dir():
        raise SettingError(f"{slot_folder} is no folder: make it, or give another one with --slot-save-path")
    if host not in _LOCAL and not all_keys:
        raise click.UsageError(f"at {host} other machines can reach the server: give a key with --api-key-file PATH")
    preferences, rules = take_preferences(flags), read_grammar(schema, grammar)
    # Imported here: it keeps `tinychat --help` fast.
    try:
        from tinychat.serve.running import run_server
        from tinychat.serve.server import ServerOptions
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PACKAGES:
            raise
        raise SettingError(f"a server needs {missing}: {install_command(' '.join(_PACKAGES))}") from None

    paths = {} if folder is None else {path.name: path for path in _models_in(folder)}
    open_model = partial(_opened, load, preferences, rules)
    loads = {name: partial(open_model, str(path)) for name, path in paths.items()}
    if folder is None:
        loads[_name(preferences, model)] = partial(open_model, model)
    # What is left of the flags has the names of the server's options.
    options = ServerOptions(
        host=host,
        keys=all_keys,
        hosts=frozenset(hosts),
        origins=frozenset(origins),
        most_waiting=queue,
        most_loaded=models_max,
        idle_seconds=None if idle is None else _seconds(idle),
        ping_seconds=ping,
        shutdown_seconds=shutdown,
        slot_folder=slot_folder,
        loads_first=folder is None,
        cache_disk=preferences.resolve().chat.cache_disk,
        shares_prefixes=not no_shared_prefixes,
        paths=paths,
        pull=partial(_pulled, open_model) if allow_pull else None,
        **flags,
    )
    run_server(loads, options, lambda line: click.echo(line, err=True))


def _keys_of(path: Path | None) -> list[str]:
    lines = [] if path is None else [line.strip() for line in read_text(path).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if path is not None and not lines:
        raise SettingError(f"{path} has no key: write one on a line of its own")
    return lines


def _name(preferences: Preferences, model: str | None) -> str:
    """Return the name that a model is served by."""
    from tinychat.store.default_model import default_model

    named = preferences.model(model) or default_model()
    return Path(named).name if os.sep in named and Path(named).exists() else named


def _opened(
    load: Loader, preferences: Preferences, grammar: Grammar | None, model: str | None
) -> tuple[Model, Request]:
    """Return a model and the defaults of its requests."""
    named = preferences.model(model)
    loaded = load(named, preferences.resolve(model, named).loading)
    defaults = preferences.resolve(model, named, loaded.name, advice=loaded.own_defaults).request
    if grammar is not None:
        defaults = replace(defaults, constraint=loaded.constraints.of(grammar, after_thinking=True))
    return loaded, defaults


def _pulled(open_model: Callable[[str], Any], name: str, progress: Callable[[int, int], None]) -> tuple[Load, Path]:
    """Get a model of the catalog; return its loader and folder."""
    from tinychat.api import pull

    path = pull(name, progress)
    return partial(open_model, str(path)), path


def _models_in(folder: Path) -> list[Path]:
    """Return the models of a folder: GGUF files, and folders with a model."""
    from tinychat.store.local import MANIFEST

    if not folder.is_dir():
        raise SettingError(f"{folder} is no folder: give one with models in it")
    found = [path for path in sorted(folder.iterdir()) if _is_model(path, MANIFEST)]
    if not found:
        raise SettingError(f"{folder} has no models: put model folders or GGUF files into it")
    return found


def _is_model(path: Path, manifest: str) -> bool:
    return path.suffix == ".gguf" or (path / manifest).is_file() or (path / "config.json").is_file()


def _seconds(text: str) -> float:
    """Return the seconds of a time such as "90", "90s", "10m" or "2h"."""
    seconds = seconds_of(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None or not 0 < seconds < 1e9:
        raise click.UsageError(f"--idle must be a time such as 90s, 10m or 2h, not {text!r}")
    return seconds
