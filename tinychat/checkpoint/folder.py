"""The folder of a checkpoint: unpacked from a GGUF file where it is one, and with the files of an adapter."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tinychat.checkpoint.gguf import is_gguf
from tinychat.errors import FieldError
from tinychat.files import read_small


@contextmanager
def folder_of(
    checkpoint: Path, adapter: Path | None = None, mmproj: Path | None = None, found: Path | None = None
) -> Iterator[Path]:
    """Yield the folder of a checkpoint, temporary for a GGUF file or a folder of one; errors as `unpacked`.

    adapter : the folder of an adapter that is merged when the weights are read, or the name of a task that the
    checkpoint has one for; its folder is temporary then. mmproj : the file by which the model of a GGUF file sees, as
    for `unpacked`; `FieldError` beside another checkpoint. found : the same.
    """
    with ExitStack() as stack:
        folder = checkpoint
        if not os.path.isfile(checkpoint / "config.json") and is_gguf(checkpoint):
            # Imported here: reading takes NumPy, which is a while.
            from tinychat.checkpoint.gguf_checkpoint import gguf_in, unpacked

            file = checkpoint if checkpoint.is_file() else gguf_in(checkpoint)
            folder = stack.enter_context(unpacked(file, mmproj, found))
        elif mmproj is not None:
            raise mmproj_error()
        yield folder if adapter is None else stack.enter_context(_beside(folder, adapter))


def mmproj_error() -> FieldError:
    """Return the error of an mmproj file beside a checkpoint that is no GGUF file."""
    return FieldError("mmproj", "is for GGUF files: leave it out, or give the model's GGUF file")


@contextmanager
def _beside(folder: Path, adapter: Path) -> Iterator[Path]:
    """Yield a folder of copies of a checkpoint's text files, and of links to its weights and to an adapter's."""
    from tinychat.checkpoint.adapter_files import adapter_files
    from tinychat.checkpoint.checkpoint import MAX_TEXT_FILE_BYTES, TEXT_FILES, refuse_links_out
    from tinychat.checkpoint.task_adapters import config_with_task, tasks_of

    is_task = str(adapter) in tasks_of(folder)
    files = {} if is_task else adapter_files(adapter)
    refuse_links_out(folder)
    with TemporaryDirectory(prefix="tinychat-merged-") as temporary:
        target = Path(temporary) / f"{folder.name[:100]}-{adapter.resolve().name[:100]}"
        target.mkdir()
        texts = {name: folder / name for name in TEXT_FILES if (folder / name).is_file()}
        for name, file in texts.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(read_small(file, MAX_TEXT_FILE_BYTES))
        others = {file.name: file for file in folder.iterdir() if file.is_file() and file.name not in texts}
        for name, file in (others | files).items():
            (target / name).symlink_to(file.resolve())
        if is_task:
            (target / "config.json").write_bytes(config_with_task(folder / "config.json", str(adapter)))
        yield target
