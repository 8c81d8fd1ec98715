"""Compilation for a model beside its download or conversion, in a process of its own.

The kernels of a model follow from its configuration and the layout of its weights, not from their values. The process
stores them in the kernel cache; whoever needs the same forward pass meanwhile waits for it (`engine.compiling`).
"""

import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np

from tinychat.engine.second_compiler import start_compiler
from tinychat.file_lock import try_lock
from tinychat.models.config import ModelConfig
from tinychat.models.folder import MAPPED_AS, ModelFolder
from tinychat.models.layout import Quantization, tensor_specs

_SECONDS_BETWEEN_LOOKS = 0.3
_DONE = b"done"
_started: list[subprocess.Popen[bytes]] = []


def begin(config: ModelConfig, quantization: Quantization) -> None:
    """Start a process that compiles for a model that is loaded later.

    Nothing happens without a second core, or where a process does so already or has done so. The process ends when it
    is done, or with this one, or when it fails, silently.
    """
    from tinychat.machine import available_cores

    if available_cores() < 2 or not sys.executable or _is_begun(config, quantization):
        return
    with suppress(OSError):
        process = start_compiler(__name__)
        # Not waited for, and nobody is to be told that.
        _started.append(process)
        assert process.stdin is not None
        with process.stdin as stream:
            stream.write(pickle.dumps((config, quantization)))


def serve() -> None:
    """Compile for the model that stdin describes."""
    end_with_parent()
    config, quantization = pickle.load(sys.stdin.buffer)
    compile_for(config, quantization)


def end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def compile_for(config: ModelConfig, quantization: Quantization) -> None:
    """Compile what an engine for such a model runs with default settings, and note that in the kernel cache."""
    # Imported here: only the process that compiles needs NumPy's and LLVM's libraries.
    from tinychat.engine.engine import Engine
    from tinychat.engine.loading import default_kv
    from tinychat.machine import available_cores

    # Memory that is never touched.
    tensors = {
        name: np.zeros(spec.shape, MAPPED_AS[spec.dtype]) for name, spec in tensor_specs(config, quantization).items()
    }
    folder = ModelFolder(Path(), config, quantization, tensors)
    with ExitStack() as stack:
        note, path = None, _note_of(config, quantization)
        with suppress(OSError):
            if path is not None:
                note = stack.enter_context(path.open("ab", buffering=0))
                # Until the file is closed, however this process ends.
                try_lock(note.fileno())
        Engine(folder, available_cores(), default_kv(config, quantization)).compile()
        if note is not None:
            with suppress(OSError):
                note.write(_DONE)


def _is_begun(config: ModelConfig, quantization: Quantization) -> bool:
    """Return whether a process compiles for such a model, or has done so."""
    path = _note_of(config, quantization)
    try:
        with open(path or os.devnull, "rb+") as note:
            return not try_lock(note.fileno()) or note.read().startswith(_DONE)
    except OSError:
        return False


def _note_of(config: ModelConfig, quantization: Quantization) -> Path | None:
    """Return the file that is locked while kernels for such a model are compiled; None without a cache folder."""
    folder = os.environ.get("NUMBA_CACHE_DIR")
    digest = sha256(repr((config, quantization)).encode()).hexdigest()
    return Path(folder) / f"ahead-{digest[:16]}" if folder else None
