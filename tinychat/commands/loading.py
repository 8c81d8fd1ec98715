"""Loading the model that a command names, with progress bars for what takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from tinychat.commands.progress import progress_bar
from tinychat.configuration import resolve_alias
from tinychat.engine.context import beyond_training, fewer_threads
from tinychat.held_signals import held_signals
from tinychat.settings import LoadSettings

if TYPE_CHECKING:
    from tinychat.generate.model import Model

Loader = Callable[[str | None, LoadSettings], "Model"]
"""Makes the model that the command line names, None being the usual one."""


def load_model(model: str | None, options: LoadSettings) -> Model:
    """Load `model`, converting it and compiling the kernels the first time.

    Raises
    ------
    TinychatError
        If there is no such model, it is damaged, or a setting is out of range.
    """
    model = resolve_alias(model)
    # Imported here: it keeps `tinychat --help` fast.
    with held_signals():
        from tinychat.api import locate
        from tinychat.generate.model import load_folder
        from tinychat.store.usual import usual_model

    with progress_bar(f"converting {model or usual_model()} (once)") as converting:
        folder = locate(model, converting)
    with progress_bar("compiling kernels for this CPU (once for models of this kind)") as compiling:
        loaded = load_folder(folder, **asdict(options), progress=compiling)
    threads = loaded.sequence.engine.threads
    if options.threads is not None and options.threads > threads:
        print(fewer_threads(options.threads, threads), file=sys.stderr)
    if loaded.context_size > loaded.trained_length:
        print(beyond_training(loaded.context_size, loaded.trained_length), file=sys.stderr)
    return loaded
