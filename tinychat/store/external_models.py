"""Models of other programs on this machine, under the names that they have there.

Ollama (github.com/ollama/ollama) has a manifest for each name, with the blob that is the GGUF file. LM Studio
(lmstudio.ai) has folders PUBLISHER/REPOSITORY, and the hub's cache (github.com/huggingface/huggingface_hub) a snapshot
of each repository; both hold GGUF files or checkpoints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinychat.checkpoint.gguf import ENDING, first_parts, parts_of
from tinychat.errors import CheckpointError, TinychatError
from tinychat.files import read_small
from tinychat.json_file import one_line, path_end, read_json_object
from tinychat.models.architectures import find_family, read_config
from tinychat.models.multimodal import wrapper_of

OLLAMA, LM_STUDIO, HUB_CACHE = "Ollama", "LM Studio", "the hub's cache"
# Where Ollama runs as a service of the system, it has a home of its own.
_OLLAMA_FOLDERS = ("~/.ollama/models", "/usr/share/ollama/.ollama/models")
_LM_STUDIO_HOMES = ("~/.lmstudio", "~/.cache/lm-studio")
_OLLAMA_REGISTRY, _OLLAMA_LIBRARY = "registry.ollama.ai", "library"
_OLLAMA_MODEL, _OLLAMA_MMPROJ = (f"application/vnd.ollama.image.{kind}" for kind in ("model", "projector"))
_OLLAMA_MANIFESTS, _OLLAMA_BLOBS = "*/*/*/*", "blobs"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
_LONGEST_POINTER = 4096


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model of another program, a GGUF file or a checkpoint folder, under the name of a MODEL argument.

    `program` is ``OLLAMA``, ``LM_STUDIO`` or ``HUB_CACHE``.
    """

    name: str
    program: str
    path: Path

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint folder."""
        return os.path.isdir(self.path)

    def bytes(self) -> int:
        """Return the size of its files, all parts of a split one; 0 if they cannot be read."""
        try:
            files = self.path.iterdir() if self.is_checkpoint else parts_of(self.path)
            return sum(file.stat().st_size for file in files if os.path.isfile(file))
        except OSError:
            return 0

    def problem(self) -> str:
        """Return the reason why it cannot be used, in one line, by its header; empty if it can."""
        try:
            if self.is_checkpoint:
                read_config(self.path / "config.json")
            else:
                # Imported here: it takes NumPy, which is a while.
                from tinychat.checkpoint.gguf_checkpoint import check_architecture
                from tinychat.checkpoint.gguf_header import read_beginning

                check_architecture(read_beginning(self.path), self.path)
        except TinychatError as error:
            text = str(error)
            for path in (f"{self.path}/config.json", str(self.path)):
                text = text.removeprefix(path).removeprefix(path_end(path)).lstrip(": ")
            return one_line(text.partition(";")[0])
        except Exception:
            # One file of another program must not hide the others.
            return "damaged"
        return ""


def found_models(environment: Mapping[str, str] = os.environ) -> Iterator[FoundModel]:
    """Yield the models of other programs, in the order in which names are looked up.

    Ollama is looked for at $OLLAMA_MODELS, the hub's cache at $HF_HUB_CACHE or $HF_HOME.
    """
    names: set[str] = set()
    for search in (_in_ollama, _in_lm_studio, _in_hub_cache):
        for model in search(environment):
            if model.name not in names:
                names.add(model.name)
                yield model


def find_model(name: str) -> FoundModel | None:
    """Return the model of this name; one of Ollama's library needs no ``:latest``, one file of a folder no name."""
    for model in found_models():
        if name == model.name or (model.program == OLLAMA and f"{name}:latest" == model.name and "/" not in name):
            return model
    return None


def _in_ollama(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    for folder in [environment["OLLAMA_MODELS"]] if environment.get("OLLAMA_MODELS") else _OLLAMA_FOLDERS:
        root = Path(os.path.expanduser(folder))
        for manifest in _files(root / "manifests", _OLLAMA_MANIFESTS):
            blob = _ollama_blobs(root, manifest).get(_OLLAMA_MODEL)
            if blob is not None:
                host, space, *model = manifest.relative_to(root / "manifests").parts
                short = host == _OLLAMA_REGISTRY
                where = [] if short and space == _OLLAMA_LIBRARY else [space] if short else [host, space]
                yield FoundModel("/".join([*where, ":".join(model)]), OLLAMA, blob)


def ollama_mmproj(model: Path) -> Path | None:
    """Return the mmproj file that Ollama has for a model of its own; None for other files."""
    if model.parent.name != _OLLAMA_BLOBS:
        return None
    root = model.parents[1]
    found = (_ollama_blobs(root, manifest) for manifest in _files(root / "manifests", _OLLAMA_MANIFESTS))
    return next((each[_OLLAMA_MMPROJ] for each in found if each.get(_OLLAMA_MODEL) == model and len(each) > 1), None)


def _ollama_blobs(root: Path, manifest: Path) -> dict[str, Path]:
    """Return the GGUF files that a manifest names, by their kind, of those that are there."""
    try:
        layers = read_json_object(manifest).get("layers")
    except CheckpointError:
        return {}
    found: dict[str, Path] = {}
    for layer in layers if isinstance(layers, list) else ():
        kind = layer.get("mediaType") if isinstance(layer, dict) else None
        if kind in (_OLLAMA_MODEL, _OLLAMA_MMPROJ) and kind not in found:
            digest = _DIGEST.fullmatch(str(layer.get("digest")))
            blob = root / _OLLAMA_BLOBS / f"sha256-{digest[1]}" if digest else None
            if blob is not None and os.path.isfile(blob):
                found[kind] = blob
    return found


def _in_lm_studio(_environment: Mapping[str, str]) -> Iterator[FoundModel]:
    for home in map(os.path.expanduser, _LM_STUDIO_HOMES):
        for folder in _files(_lm_studio_models(Path(home)), "*/*"):
            if os.path.isdir(folder):
                yield from _in_folder(f"{folder.parent.name}/{folder.name}", LM_STUDIO, folder)


def _lm_studio_models(home: Path) -> Path:
    """Return the folder of models, which the user may have put elsewhere."""
    try:
        chosen = read_json_object(home / "settings.json").get("downloadsFolder")
    except CheckpointError:
        chosen = None
    return Path(chosen) if isinstance(chosen, str) and os.path.isabs(chosen) else home / "models"


def _in_hub_cache(environment: Mapping[str, str]) -> Iterator[FoundModel]:
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or os.path.join(caches, "huggingface")
    root = Path(os.path.expanduser(environment.get("HF_HUB_CACHE") or os.path.join(home, "hub")))
    for repository in _files(root, "models--*--*"):
        snapshot = _snapshot(repository)
        if snapshot is not None:
            yield from _in_folder(repository.name.removeprefix("models--").replace("--", "/"), HUB_CACHE, snapshot)


def _snapshot(repository: Path) -> Path | None:
    """Return the folder of a cached repository's main branch, else of its newest commit."""
    try:
        commit = read_small(repository / "refs" / "main", _LONGEST_POINTER).decode("ascii", "replace").strip()
        if _COMMIT.fullmatch(commit) and os.path.isdir(repository / "snapshots" / commit):
            return repository / "snapshots" / commit
    except OSError:
        pass
    snapshots = [path for path in _files(repository / "snapshots", "*") if os.path.isdir(path)]
    return max(snapshots, key=_modified, default=None)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _in_folder(name: str, program: str, folder: Path) -> Iterator[FoundModel]:
    """Yield the checkpoint of a folder, or each of its GGUF files."""
    if os.path.isfile(folder / "config.json") and _is_whole_checkpoint(folder):
        yield FoundModel(name, program, folder)
        return
    files = first_parts(_files(folder, f"*{ENDING}"))
    for file in files:
        yield FoundModel(name if len(files) == 1 else f"{name}/{file.name}", program, file)


def _is_whole_checkpoint(folder: Path) -> bool:
    """Return whether a folder has a language model's weights, all of them: downloads may have been interrupted."""
    try:
        config = read_json_object(folder / "config.json")
        architectures = config.get("architectures")
        name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
        if not (name.endswith(_LANGUAGE_MODELS) or find_family(name) or wrapper_of(config)):
            return False
        for whole in ("model.safetensors", "pytorch_model.bin"):
            if os.path.isfile(folder / whole):
                return True
            if os.path.isfile(folder / f"{whole}.index.json"):
                shards = read_json_object(folder / f"{whole}.index.json").get("weight_map")
                return isinstance(shards, dict) and all(
                    os.path.isfile(folder / str(name)) for name in {*shards.values()}
                )
    except (CheckpointError, TypeError, ValueError, OSError):
        pass
    return False


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the matches in a folder, in order; names that a terminal could not show are left out."""
    try:
        return sorted(path for path in folder.glob(pattern) if str(path.relative_to(folder)).isprintable())
    except (OSError, ValueError):
        return []
