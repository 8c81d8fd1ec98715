"""From a model folder to an engine that is ready to run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import SettingError
from tinychat.model.folder import open_model_folder

if TYPE_CHECKING:
    from tinychat.model.decoder import Decoder

DEFAULT_CONTEXT = 8192
MAX_CONTEXT = 1 << 20
MAX_THREADS = 1024


def load_engine(
    folder: Path,
    *,
    context_size: int | None = None,
    threads: int | None = None,
    kv: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "Decoder":
    """Open a model folder, and compile the kernels if this machine has not done so yet.

    Parameters
    ----------
    folder : Path
    context_size : int, optional
        Capacity in positions; the model's own when omitted, at most 8192.
    threads : int, optional
        All cores that this process may use when omitted.
    kv : {"f16", "f32"}, optional
        Type of the cache; float16 when omitted, float32 for an unquantized model.
    progress : callable, optional
        Called with (steps done, steps in all) if kernels have to be compiled.

    Raises
    ------
    ModelFolderError
        If the folder is damaged.
    SettingError
        If an argument is out of range.
    """
    opened = open_model_folder(folder)
    if context_size is not None and not 1 <= context_size <= MAX_CONTEXT:
        raise SettingError(f"--context {context_size} is out of range: give 1 to {MAX_CONTEXT} tokens")
    if threads is not None:
        allow_threads(threads)
    # Imported after the number of threads is set: Numba reads it once.
    import numba

    from tinychat.kernels.setup import available_cores
    from tinychat.model.decoder import Decoder
    from tinychat.model.warmup import compile_kernels

    available = numba.config.NUMBA_NUM_THREADS
    if threads is not None and threads > available:
        raise SettingError(f"--threads {threads} is more than the {available} that this process started with")
    decoder = Decoder(
        opened,
        context_size or min(opened.config.max_position_embeddings, DEFAULT_CONTEXT),
        threads or min(available, available_cores()),
        kv or ("f32" if opened.quantization.method == "f32" else "f16"),
    )
    compile_kernels(decoder, progress)
    return decoder


def allow_threads(threads: int) -> None:
    """Let Numba start as many threads as asked for, if it has not been imported yet.

    Raises
    ------
    SettingError
        If the number makes no sense.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise SettingError(f"--threads {threads} is out of range: give 1 to {MAX_THREADS}")
    os.environ.setdefault("NUMBA_NUM_THREADS", str(max(threads, os.cpu_count() or 1)))
