"""From a model folder to an engine that is ready to run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tinychat.errors import SettingError
from tinychat.model.context import DEFAULT_CONTEXT, check_context
from tinychat.model.folder import open_model_folder

if TYPE_CHECKING:
    from tinychat.model.decoder import Decoder

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
    kv : {"bf16", "f16", "int8", "f32"}, optional
        Type of the cache (`kernels.kv`): bfloat16 when omitted, float32 for an unquantized model.
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
    if context_size is not None:
        check_context(context_size)
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise SettingError(f"--threads {threads} is out of range: give 1 to {MAX_THREADS}")
    # Imported late: a wrong folder or setting is told at once.
    from tinychat.kernels.setup import available_cores
    from tinychat.model.decoder import Decoder
    from tinychat.model.warmup import compile_kernels

    decoder = Decoder(
        opened,
        context_size or min(opened.config.max_position_embeddings, DEFAULT_CONTEXT),
        threads or available_cores(),
        kv or ("f32" if opened.quantization.method == "f32" else "bf16"),
    )
    compile_kernels(decoder, progress)
    return decoder
