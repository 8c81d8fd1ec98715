"""Loading the model that a command names, with progress bars for downloads, conversion and compilation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinychat.commands.progress import progress_bar
from tinychat.configuration import resolve_alias
from tinychat.engine.context import beyond_training, fewer_threads
from tinychat.errors import DrafterError, ModelError, TextError
from tinychat.held_signals import held_signals
from tinychat.machine import is_on_battery, lower_priority
from tinychat.settings import LoadSettings
from tinychat.terminal.safe_text import one_safe_line

if TYPE_CHECKING:
    from tinychat.generate.model import Model

Loader = Callable[[str | None, LoadSettings], "Model"]
"""Loads the model of this name; None is the default model."""


def given_settings(flags: Mapping[str, Any]) -> LoadSettings:
    """Return the settings of loading that flags give, and the defaults of the others."""
    return LoadSettings(**{name: value for name, value in flags.items() if value is not None})


def load_model(model: str | None, options: LoadSettings) -> Model:
    """Load `model`; its first use converts it and compiles the kernels."""
    if is_on_battery():
        # Whatever else runs goes first; alone, this process is as fast as before.
        lower_priority()
    model = resolve_alias(model)
    if model is None and not os.environ.get("TINYCHAT_MODEL"):
        _, loaded = load_or_demo(lambda name: _load(name, options), None, _print_line)
    else:
        loaded = _load(model, options)
    threads = loaded.sequence.engine.threads
    if options.threads is not None and options.threads > threads:
        _print_line(fewer_threads(options.threads, threads))
    if loaded.context_size > loaded.trained_length:
        _print_line(beyond_training(loaded.context_size, loaded.trained_length))
    return loaded


def load_writer(load: Loader, name: str | None, options: LoadSettings) -> Model:
    """Load a model for a conversation; SettingError for one that gives embeddings only."""
    loaded = load(name, options)
    loaded.check_writes()
    return loaded


def load_or_demo(
    load: Callable[[str | None], Model], name: str | None, notice: Callable[[str], object]
) -> tuple[str | None, Model]:
    """Load a model that nobody named on the command line; if that fails, load the demo model and tell `notice` why.

    Returns the name of the model that was loaded, and the model.
    """
    from tinychat.store.default_model import DEMO, default_model

    try:
        return name, load(name)
    except (ModelError, TextError) as error:
        wanted = name or default_model()
        if wanted == DEMO:
            raise
        notice(f"cannot use the model {wanted}: {error}; using the bundled demo model instead")
    return DEMO, load(DEMO)


def _load(name: str | None, options: LoadSettings) -> Model:
    with held_signals():
        from tinychat.api import locate
        from tinychat.generate.loading import load_folder
        from tinychat.store.default_model import default_model

    name = name or default_model()
    smaller = load_draft(_load, resolve_alias(options.draft), options) if isinstance(options.draft, str) else None
    with progress_bar(f"converting {name} (once)") as converting:
        folder = locate(name, converting)
    with progress_bar("compiling kernels for this CPU (once for models of this kind)") as compiling:
        loaded = load_folder(folder, **asdict(replace(options, draft=bool(options.draft))), progress=compiling)
        if smaller is not None:
            loaded.change_drafts(smaller, compiling)
    return loaded


def load_draft(load: Loader, name: str | None, options: LoadSettings) -> Model | Path:
    """Load a smaller model whose drafts a model of `options` checks; of a drafter, return the folder."""
    try:
        return load(name, replace(options, context=None, kv=None, draft=False))
    except DrafterError as drafter:
        folder: Path = drafter.folder
        return folder


def _print_line(text: str) -> None:
    print(one_safe_line(text), file=sys.stderr)
