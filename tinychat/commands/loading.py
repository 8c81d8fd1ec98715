"""Loading the model that a command names, with progress bars for what takes long."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tinychat.commands.progress import progress_bar
from tinychat.configuration import resolve_alias
from tinychat.engine.context import beyond_training, fewer_threads
from tinychat.errors import (
    CheckpointError,
    ConversionError,
    HubError,
    ModelFolderError,
    StoreError,
    TextError,
    UnsupportedModelError,
)
from tinychat.held_signals import held_signals
from tinychat.settings import LoadSettings
from tinychat.terminal.safe_text import one_safe_line

if TYPE_CHECKING:
    from tinychat.generate.model import Model

MODEL_PROBLEMS = (
    CheckpointError,
    ConversionError,
    HubError,
    ModelFolderError,
    StoreError,
    TextError,
    UnsupportedModelError,
)
"""Errors of a model that is not there, or not as it should be, and of its conversion."""
Loader = Callable[[str | None, LoadSettings], "Model"]
"""Makes the model that the command line names, None being the usual one."""


def load_model(model: str | None, options: LoadSettings) -> Model:
    """Load `model`, converting it and compiling the kernels the first time.

    Where none is named and the usual one cannot be used, the bundled one is loaded, and a line says why.

    Raises
    ------
    TinychatError
        If there is no such model, it is damaged, or a setting is out of range.
    """
    model = resolve_alias(model)
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.store.default_model import DEMO, default_model

    name = default_model() if model is None else model
    try:
        loaded = _opened(name, options)
    except MODEL_PROBLEMS as error:
        if model is not None or name == DEMO or os.environ.get("TINYCHAT_MODEL"):
            raise
        print(f"{name} cannot be used: {one_safe_line(str(error))}; the bundled demo model answers", file=sys.stderr)
        loaded = _opened(DEMO, options)
    threads = loaded.sequence.engine.threads
    if options.threads is not None and options.threads > threads:
        print(fewer_threads(options.threads, threads), file=sys.stderr)
    if loaded.context_size > loaded.trained_length:
        print(beyond_training(loaded.context_size, loaded.trained_length), file=sys.stderr)
    return loaded


def _opened(name: str, options: LoadSettings) -> Model:
    with held_signals():
        from tinychat.api import locate
        from tinychat.generate.model import load_folder

    with progress_bar(f"converting {name} (once)") as converting:
        folder = locate(name, converting)
    with progress_bar("compiling kernels for this CPU (once for models of this kind)") as compiling:
        return load_folder(folder, **asdict(options), progress=compiling)
