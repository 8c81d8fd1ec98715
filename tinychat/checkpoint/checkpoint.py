"""A Hugging Face checkpoint folder: its configuration, its tensors, and the files that are copied as they are."""

from dataclasses import dataclass
from pathlib import Path

from tinychat.checkpoint.adapter import merged
from tinychat.checkpoint.adapter_files import ADAPTER_CONFIG, use_of
from tinychat.checkpoint.adjusted import adjusted
from tinychat.checkpoint.gguf import is_gguf
from tinychat.checkpoint.gguf_checkpoint import gguf_in
from tinychat.checkpoint.gguf_mmproj import tower_tensors
from tinychat.checkpoint.gguf_tensors import open_gguf_tensors
from tinychat.checkpoint.packed import unpack_weights
from tinychat.checkpoint.safetensors_file import check_shapes
from tinychat.checkpoint.stacked import unstacked
from tinychat.checkpoint.task_adapters import with_task
from tinychat.checkpoint.tensors import WEIGHT_FILES, Tensors, open_tensors
from tinychat.errors import CheckpointError
from tinychat.models.architectures import family_of, read_config
from tinychat.models.config import ModelConfig
from tinychat.models.dense import dense_shapes
from tinychat.models.embedder import DENSE_WEIGHTS, EMBEDDER_FILES, check_embedder, read_embedder
from tinychat.models.image_preparation import PREPARATION_FILES
from tinychat.models.ranker import LOGIT_SCORE, check_ranker, read_ranker

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.model",
    "tokenizer.json",
    "tiktoken.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    *EMBEDDER_FILES,
    LOGIT_SCORE,
    *PREPARATION_FILES,
)
"""Paths in the folder of a checkpoint, and in that of its conversion."""
# The largest tokenizer.json of a published checkpoint has 33 MiB.
MAX_TEXT_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; no tensor data has been read yet."""

    path: Path
    config: ModelConfig
    tensors: Tensors

    def text_files(self) -> list[Path]:
        """Return the configuration, tokenizer and template files that are there."""
        return [self.path / name for name in TEXT_FILES if (self.path / name).is_file()]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a checkpoint folder, checking its configuration and the headers of all its weight files.

    `CheckpointError` if the folder or one of its files is missing, damaged, or contradicts another, or a text file is a
    link out of the checkpoint; `UnsupportedModelError` if the architecture is not implemented.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; expected one with config.json and the weights")
    if not (folder / "config.json").exists() and (folder / ADAPTER_CONFIG).is_file():
        raise CheckpointError(use_of(folder))
    refuse_links_out(folder)
    config = read_config(folder / "config.json")
    _check_reader(folder, config)
    if any((folder / name).exists() for name in WEIGHT_FILES) or not is_gguf(folder):
        tensors = _renamed(merged(with_task(unpack_weights(open_tensors(folder)))), config)
        return Checkpoint(folder, config, adjusted(unstacked(tensors, config), config))
    tensors = open_gguf_tensors(folder, gguf_in(folder), config)
    tensors.by_name |= tower_tensors(folder)
    return Checkpoint(folder, config, merged(tensors, config))


def _renamed(tensors: Tensors, config: ModelConfig) -> Tensors:
    """Return the same tensors by the names that the family reads, where published files have others."""
    name_of = family_of(config.architecture).renamed
    if name_of is None:
        return tensors
    return Tensors(tensors.folder, {name_of(name): tensor for name, tensor in tensors.by_name.items()})


def _check_reader(folder: Path, config: ModelConfig) -> None:
    """Refuse what follows the pooling now, if it is not implemented, is not there or does not fit."""
    if (ranker := read_ranker(folder)) is not None:
        check_ranker(ranker, config, folder)
    if (embedder := read_embedder(folder)) is not None:
        check_embedder(embedder, config.vector_size, folder)
        for step in embedder.dense:
            check_shapes(folder / step.folder / DENSE_WEIGHTS, dense_shapes(step))


def refuse_links_out(folder: Path) -> None:
    """Refuse text files that lie elsewhere: they are copied into the model folder, and may be the user's own."""
    real = folder.resolve()
    homes = [real]
    if real.parent.name == "snapshots" and real.parents[1].name.startswith("models--"):
        # The hub's cache: its snapshots are links to files that repositories may share.
        homes += [real.parents[1] / "blobs", real.parents[2] / "blobs"]
    for name in TEXT_FILES:
        file = folder / name
        if (file.is_symlink() or file.is_file()) and not any(home in file.resolve().parents for home in homes):
            raise CheckpointError(f"{file} is a link to a file outside of the checkpoint: copy that file into it")
