"""An engine of a model folder, ready to run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import DrafterError
from tinychat.held_signals import held_signals
from tinychat.machine import available_cores, default_threads
from tinychat.models.config import ModelConfig
from tinychat.models.folder import open_model_folder
from tinychat.models.layout import Quantization

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine

NARROW_SIZE = 512


def default_kv(config: ModelConfig, quantization: Quantization) -> str:
    """Return the default type of cache: that of unquantized weights, else bfloat16, float16 for a narrow model."""
    if quantization.dtype == "f32":
        return "f32"
    return "f16" if config.hidden_size < NARROW_SIZE else "bf16"


def load_engine(
    folder: Path,
    *,
    threads: int | None = None,
    fewest_threads: int = 1,
    kv: str | None = None,
    cache_memory: int | None = None,
    share: int = 100,
    progress: Callable[[int, int], None] | None = None,
) -> "Engine":
    """Open a model folder, and compile the kernels if this machine has not done so yet.

    Arguments are those of `Engine`, of which threads are no more than the cores that this process may use, by default
    as many as there are fast ones, and `kv` is `default_kv` by default; `progress` is called with (steps done, steps in
    all) if kernels have to be compiled. `ModelFolderError` if the folder is damaged, `FieldError` if there is no such
    `kv`, `DrafterError` for a drafter; `LoadSettings` checks the others.
    """
    opened = open_model_folder(folder)
    if opened.config.larger_size is not None:
        raise DrafterError(folder)
    # Imported late: a wrong folder is reported at once.
    with held_signals():
        from tinychat.engine.engine import Engine

    # More than cores would wait for each other's turns at every barrier.
    cores = available_cores()
    threads = default_threads() if threads is None else min(threads, cores)
    kv = kv or default_kv(opened.config, opened.quantization)
    engine = Engine(opened, threads, kv, min(fewest_threads, threads), cache_memory, share)
    engine.compile(progress)
    return engine
