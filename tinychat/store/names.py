"""The MODEL of a command: a path, a name of the store or of another program, or a repository.

Looked for in this order: a model folder or a checkpoint folder; a name of the store; a GGUF file or a folder with one;
a name that Ollama, LM Studio or the hub's cache have, see `tinychat.store.external_models`; a repo id; "demo", the
default model, and the catalog's names.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tinychat.checkpoint.adapter_files import ADAPTER_CONFIG, use_of
from tinychat.checkpoint.gguf import is_gguf, mmproj_beside
from tinychat.errors import StoreError
from tinychat.json_file import one_line
from tinychat.store.catalog import CATALOG
from tinychat.store.default_model import DEFAULT_MODEL, DEMO, PACKAGE, default_file
from tinychat.store.external_models import HUB_CACHE, find_model, found_models, ollama_mmproj
from tinychat.store.local import (
    MANIFEST,
    SEE_MODELS,
    StoredModel,
    describe,
    holds,
    is_name,
    list_models,
    nearest,
    path_for,
)

_REPO_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
# Beside the package in a source tree, inside it when installed from a wheel.
_PACKAGE = Path(__file__).parents[1]
_PATHS = ("./", "../", "/", "~")
_FILE_ENDINGS = (".gguf", ".safetensors", ".bin", ".json")
_DEMO_FOLDERS = (_PACKAGE / "weights" / DEMO, _PACKAGE.parent / "weights" / DEMO)


@dataclass(frozen=True, slots=True)
class ModelReference:
    """The model of a MODEL argument.

    Its kind is "folder", a model folder anywhere; "stored", one in the store; "checkpoint", a Hugging Face folder or a
    GGUF file still to be converted; "repository", one still to be downloaded and converted.
    """

    kind: Literal["folder", "stored", "checkpoint", "repository"]
    source: str  # the folder, or for a repository its id
    path: Path  # the model folder, or where the conversion belongs


def find(model: str) -> ModelReference:
    """Find the model of a MODEL argument as `resolve` does, and by some names more, where nothing else has them.

    "demo" is the bundled model, "smollm2-135m" the one of the Python package that holds it, and the catalog's names
    are repositories.
    """
    try:
        return resolve(model)
    except StoreError:
        if model == DEMO:
            folder = demo_model()
            return ModelReference("folder", str(folder), folder)
        if model == DEFAULT_MODEL:
            return _default()
        if model not in CATALOG:
            raise
    return catalogued(model)


def _default() -> ModelReference:
    file = default_file()
    if file is None:
        raise StoreError(f"{DEFAULT_MODEL} is not on this machine: get it with `tinychat pull {DEFAULT_MODEL}`")
    return converted_or("checkpoint", str(file), DEFAULT_MODEL)


def catalogued(name: str) -> ModelReference:
    """Return the repository of a name of the catalog, or its conversion, under either name, in the store."""
    repo_id = CATALOG[name].repository
    by_id = repository(repo_id)
    return by_id if by_id.kind == "stored" else converted_or("repository", repo_id, name)


def known_names() -> list[str]:
    """List the names of models of the store, of other programs, and of the catalog."""
    names = [model.name for model in list_models()] + [model.name for model in found_models()]
    return list(dict.fromkeys([*names, *CATALOG]))


def ready_models() -> list[StoredModel]:
    """List the models that need no download: those of the store, the default one's package, and the bundled one."""
    models = list_models()
    stored = {model.name for model in models}
    file = default_file()
    if file is not None and DEFAULT_MODEL not in stored:
        source = f"{PACKAGE}; converted on first use"
        models.append(StoredModel(DEFAULT_MODEL, file, file.stat().st_size, source, "GGUF"))
    with suppress(StoreError):
        if DEMO not in stored:
            models.append(replace(describe(demo_model()), name=DEMO, source="bundled with tinychat"))
    return models


def resolve(model: str) -> ModelReference:
    """Find the model of a MODEL argument: a path, a name of a program or a repo id, in the order of this file."""
    # os.path, since pathlib raises for names that no file system can have and users that do not exist.
    folder = Path(os.path.expanduser(model))
    if holds(folder, MANIFEST):
        return ModelReference("folder", str(folder), folder)
    if holds(folder, "config.json"):
        return converted_or("checkpoint", str(folder), _name_of(folder))
    if is_name(model) and holds(path_for(model), MANIFEST):
        return ModelReference("stored", model, path_for(model))
    if is_gguf(folder):
        return converted_or("checkpoint", str(folder), _name_of(folder))
    if os.path.isdir(folder):
        if holds(folder, ADAPTER_CONFIG):
            raise StoreError(use_of(folder))
        raise StoreError(f"{folder} holds neither {MANIFEST} nor config.json; it is not a model folder")
    if os.path.exists(folder):
        raise StoreError(f"{one_line(model)} is not a GGUF file; expected one, a folder, a stored name or a repo id")
    found = find_model(model)
    # The hub's own client reads its cache, and looks for changes.
    if found is not None and not (found.program == HUB_CACHE and found.is_checkpoint):
        return converted_or("checkpoint", str(found.path), _name_of(found.path, found.name))
    if _is_repo_id(model):
        reference = repository(model)
        if reference.kind == "repository" and found is None:
            _refuse_paths(model)
        return reference
    if model.startswith(_PATHS) or model.lower().endswith(_FILE_ENDINGS):
        raise StoreError(f"there is no file or folder {one_line(model)}; check its path")
    advice = nearest(model, known_names()) or SEE_MODELS
    raise StoreError(f"{one_line(model)!r} is not a folder, a model in the store or a repo id{advice}")


def _refuse_paths(model: str) -> None:
    """Refuse a repo id that is rather a path that is missing, before the hub is asked for it."""
    parent, _, name = model.rpartition("/")
    if model.lower().endswith(_FILE_ENDINGS):
        raise StoreError(f"there is no file {model} here; check its path")
    if os.path.isdir(parent):
        raise StoreError(
            f"there is no folder {name} in {parent} here; check the path, or, if {model} is a repository of the hub,"
            f" get it with `tinychat pull {model}`"
        )


def repository(repo_id: str) -> ModelReference:
    """Return the reference to a repository, whatever folders there are, or to its conversion in the store."""
    if not _is_repo_id(repo_id):
        raise StoreError(f"{one_line(repo_id, 60)} is not a repo id: give one of the form owner/name")
    return converted_or("repository", repo_id, repo_id.replace("/", "--"))


def demo_model() -> Path:
    """Return the folder of the bundled demo model."""
    for folder in _DEMO_FOLDERS:
        if (folder / MANIFEST).is_file():
            return folder
    raise StoreError("no demo model is installed: name a model folder, a Hugging Face folder or a repo id")


def _is_repo_id(text: str) -> bool:
    return _REPO_ID.fullmatch(text) is not None and ".." not in text


def converted_or(kind: Literal["checkpoint", "repository"], source: str, name: str) -> ModelReference:
    """Return the reference to a model, or to its conversion in the store where there is one already."""
    path = path_for(name)
    return ModelReference("stored" if holds(path, MANIFEST) else kind, source, path)


def _name_of(checkpoint: Path, name: str | None = None) -> str:
    """Name a conversion by name, that of the file or folder if omitted, and location: many are in folders of one name.

    Sizes and times of its files are part of the digest, so that a checkpoint that was changed is converted again.
    """
    path = checkpoint.resolve()
    # What a GGUF file sees by lies beside it, or Ollama knows it.
    ollama = ollama_mmproj(checkpoint)
    towers = [ollama] if ollama else mmproj_beside(checkpoint)
    parts = [path, *towers] if path.is_file() else path.iterdir()
    files = sorted((file.name, file.stat()) for file in parts if file.is_file())
    versions = "".join(f"\n{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)
    digest = sha256(f"{path}{versions}".encode("utf-8", "surrogateescape")).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", re.sub(r"(?i)\.gguf$", "", name or path.name)).strip("._-")[:100]
    return f"{stem or 'checkpoint'}-{digest}"
