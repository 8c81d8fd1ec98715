"""The local store of converted models."""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tinychat.checkpoint.gguf import LEFT_OUT, SEES_BY
from tinychat.errors import CheckpointError, StoreError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.drafter import is_drafter
from tinychat.models.embedder import is_embedder
from tinychat.models.multimodal import wrapper_of
from tinychat.models.passthrough import STORED_NATIVE, dtype_named
from tinychat.models.ranker import read_ranker
from tinychat.models.vision import VISION_FOLDER, sees
from tinychat.user_folders import data_folder, make_folder

MANIFEST = "tinychat.json"  # every converted model has one
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SEE_MODELS = "; see `tinychat models`"
_OTHER_HOME = "check its permissions, or set TINYCHAT_HOME to another folder"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model of the store: `bytes` is the size of its files; unknown source, number format or quality are empty."""

    name: str
    path: Path
    bytes: int
    source: str
    quantization: str
    quality: str = ""


def store_folder() -> Path:
    """Return the folder of all stored models: below $TINYCHAT_HOME, else where the system keeps user data."""
    try:
        return data_folder(os.environ) / "models"
    except OSError as error:
        raise StoreError(f"{error.strerror}; set TINYCHAT_HOME to the folder for models") from None


def is_name(text: str) -> bool:
    """Return whether a stored model can have this name."""
    return _NAME.fullmatch(text) is not None


def path_for(name: str) -> Path:
    """Return the path of a model; a name that is no file name everywhere, or leaves the store, is a StoreError."""
    if not is_name(name) or name.endswith("."):
        raise StoreError(f"{one_line(name, 60)!r} cannot name a model; use letters, digits, '.', '_' and '-' only")
    return store_folder() / name


def list_models() -> list[StoredModel]:
    """List the converted models by name; other folders, such as unfinished models, are left out."""
    try:
        paths = sorted(store_folder().iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"{store_folder()} cannot be read: {error.strerror or error}; {_OTHER_HOME}") from None
    return [describe(path) for path in paths if is_name(path.name) and holds(path, MANIFEST)]


def remove(name: str) -> None:
    """Delete a model from the store."""
    path = path_for(name)
    if not path.is_dir():
        stored = [model.name for model in list_models()]
        raise StoreError(f"the store holds no model {name!r}{nearest(name, stored) or SEE_MODELS}")
    try:
        if path.is_symlink():
            path.unlink()
            return
        # The manifest goes first: a removal that is interrupted leaves no half model in the list.
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be deleted: {error.strerror or error}; check its permissions") from None


def make_store() -> None:
    """Make the store's folder, and try whether models can be written there: before hours of downloading."""
    # Imported here: the light commands write nothing.
    from tempfile import TemporaryFile

    folder = store_folder()
    try:
        make_folder(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}; {_OTHER_HOME}") from None


def holds(folder: Path, file_name: str) -> bool:
    """Return whether a folder has a file of this name; False for paths that no file system has."""
    return os.path.isfile(folder / file_name)


def describe(path: Path) -> StoredModel:
    """Return the line of a model folder, in the store or elsewhere."""
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    try:
        manifest = read_json_object(path / MANIFEST)
    except CheckpointError:
        manifest = {}
    quality = _short(quality_texts(manifest))
    return StoredModel(path.name, path, size, _as_text(manifest.get("source")), number_format(manifest), quality)


def number_format(manifest: Mapping[str, object]) -> str:
    """Return the number format that a manifest gives most weights; of native codes, that of most tensors, as Q4_1."""
    quantization = manifest.get("quantization")
    method = quantization.get("method") if isinstance(quantization, dict) else None
    codes = manifest.get("codes")
    native = codes.get("kept") if isinstance(codes, dict) else None
    counts = {kind: count for kind, count in native.items() if type(count) is int} if isinstance(native, dict) else {}
    if method == STORED_NATIVE and counts:
        return one_line(max(counts, key=lambda kind: counts[kind]), 20)
    return dtype_named(_as_text(method))


def quality_texts(manifest: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """Return a manifest's quality report by text: numbers by name; nothing where it has none."""
    certificate = manifest.get("certificate")
    texts = certificate.get("texts") if isinstance(certificate, dict) else None
    if not isinstance(texts, dict):
        return {}
    return {
        one_line(name, 40): {key: float(n) for key, n in entry.items() if isinstance(n, int | float)}
        for name, entry in texts.items()
        if isinstance(entry, dict)
    }


def quality_lines(folder: Path) -> list[str]:
    """Return the quality report of a model folder in lines to read; none where it has none."""
    manifest = read_json_object(folder / MANIFEST)
    texts = quality_texts(manifest)
    lines = [
        f"{name}: KL {entry.get('kl', 0):.4f} to the checkpoint in float32, same top token {entry.get('top1', 0):.1%}, "
        f"perplexity {entry.get('perplexity', 0):.2f} ({entry.get('source_perplexity', 0):.2f}), "
        f"{entry.get('tokens', 0):.0f} tokens"
        for name, entry in texts.items()
    ]
    certificate = manifest.get("certificate")
    if lines and isinstance(certificate, dict):
        if isinstance(bits := certificate.get("bits_per_weight"), int | float):
            lines.append(f"{bits:.2f} bits a weight")
        worst = certificate.get("worst")
        if isinstance(worst, dict) and worst:
            parts = [f"{one_line(name, 40)} {error:.1%}" for name, error in worst.items() if isinstance(error, float)]
            lines.append(f"largest errors of outputs: {', '.join(parts)}")
    return lines


def summary_line(folder: Path) -> str:
    """Describe a model folder in a line: number format, size, and the mean of its quality report if it has one."""
    model = describe(folder)
    parts = [model.quantization, f"{model.bytes / 1e6:,.0f} MB", f"{model.quality} to float32" if model.quality else ""]
    return ", ".join(part for part in parts if part)


def next_line(folder: Path, name: str) -> str:
    """Return the line that tells how to use a model folder that was just made, by this name."""
    if is_drafter(folder):
        return f"write drafts with it: tinychat chat MODEL --draft {name}"
    if holds(folder, "config.json") and read_ranker(folder) is not None:
        return f"rank texts with it: tinychat rerank QUERY FILE {name}"
    use = "embed texts with it: tinychat embed FILE" if is_embedder(folder) else "chat with it: tinychat"
    return f"{use} {name}"


def code_lines(folder: Path) -> list[str]:
    """Return the lines about parts that a model folder leaves out, and about native and rounded tensors."""
    codes = read_json_object(folder / MANIFEST).get("codes")
    config = read_json_object(folder / "config.json") if holds(folder, "config.json") else {}
    wrapper, mmproj, reason = wrapper_of(config), _as_text(config.get(SEES_BY)), config.get(LEFT_OUT)
    lines = [f"text only: what {wrapper} has for images and sound is passed over"] if wrapper else []
    if isinstance(reason, str):
        lines = [f"text only: {one_line(reason, 300)}"]
    if sees(folder):
        origin = f", from {mmproj}" if mmproj else ""
        lines = [f"sees images: {VISION_FOLDER}/ has the vision tower of {wrapper}{origin}"]
    for key, words in (("kept", "native"), ("rounded", "rounded to 8 bits")):
        counts = codes.get(key) if isinstance(codes, dict) else None
        if isinstance(counts, dict) and counts:
            parts = [f"{count} tensors of {one_line(kind, 20)}" for kind, count in counts.items() if type(count) is int]
            lines.append(f"{words}: {', '.join(parts)}")
    return lines


def _short(texts: Mapping[str, Mapping[str, float]]) -> str:
    """Return the mean KL over the tokens of a quality report."""
    tokens = sum(entry.get("tokens", 0.0) for entry in texts.values())
    if tokens <= 0:
        return ""
    return f"KL {sum(entry.get('kl', 0.0) * entry.get('tokens', 0.0) for entry in texts.values()) / tokens:.3f}"


def _as_text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest of `names`, if one is near."""
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
