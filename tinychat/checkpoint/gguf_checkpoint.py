"""A GGUF file as the folder of a Hugging Face checkpoint: its configuration, its text files, links to its tensors.

`gguf_tensors` reads the tensors.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tinychat.checkpoint.gguf import CLIP, ENDING, first_parts, mmproj_beside
from tinychat.checkpoint.gguf_families import FAMILIES
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.checkpoint.gguf_mmproj import add_tower
from tinychat.checkpoint.gguf_ollama import ARCHITECTURES
from tinychat.checkpoint.gguf_ollama_towers import has_tower
from tinychat.checkpoint.gguf_ranker import is_ranker, ranker_config, ranker_files
from tinychat.checkpoint.gguf_tokenizer import tokenizer_files
from tinychat.checkpoint.gguf_values import GgufValues, positive, present
from tinychat.errors import CheckpointError
from tinychat.json_file import one_line
from tinychat.models.architectures import family_of, parse_config, unsupported
from tinychat.models.dense import WEIGHT, dense_file
from tinychat.models.drafter import GEMMA4
from tinychat.models.embedder import DENSE, DENSE_WEIGHTS, DenseStep, embedder_files

# GGUF's numbers of poolings (llama.cpp, include/llama.h, llama_pooling_type).
POOLINGS: Mapping[int, str] = {1: "mean", 2: "cls", 3: "last"}
# The linear layers behind the pooling.
DENSE_TENSORS = ("dense_2.weight", "dense_3.weight")
# Of channels that are rotated in a head.
_MAX_PAIRS = 1 << 16


@contextmanager
def unpacked(file: Path, mmproj: Path | None = None, found: Path | None = None) -> Iterator[Path]:
    """Yield a checkpoint folder of a GGUF file: its text files, and links to its tensors.

    It has the vision tower of an `mmproj` file, too, by default of one that was `found` by another program's files or
    lies beside it, or its own, if that can be used: see `gguf_mmproj`.
    """
    files = open_gguf(file)
    with TemporaryDirectory(prefix="tinychat-gguf-") as folder:
        target = Path(folder) / file.stem
        target.mkdir()
        for name, content in text_files(files).items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
        for part in files:
            # Some programs give their files no ending.
            name = part.path.name if part.path.suffix.lower() == ENDING else f"{part.path.name}{ENDING}"
            (target / name).symlink_to(part.path.resolve())
        named = mmproj or found
        if towers := [named] if named else [file] if has_tower(files[0]) else mmproj_beside(file):
            add_tower(target, files[0], towers, mmproj is not None)
        yield target


def gguf_in(folder: Path) -> Path:
    """Return the GGUF file of a folder that has one, the first part of a split one."""
    models = first_parts(sorted(path for path in folder.iterdir() if path.suffix.lower() == ENDING))
    if len(models) > 1:
        names = ", ".join(one_line(path.name, 60) for path in models[:4])
        raise CheckpointError(f"{folder} holds several GGUF files ({names}): give the path of one")
    if not models:
        raise CheckpointError(f"{folder} holds no GGUF file of a language model: give the path of one")
    return models[0]


def text_files(files: Sequence[GgufFile]) -> dict[str, bytes]:
    """Return configuration, tokenizer and template as the files of a checkpoint folder; errors as of `unpacked`."""
    metadata = files[0].metadata
    config = config_of(files)
    # A drafter reads the ids of another model.
    is_alone = config.get("model_type") != GEMMA4
    generation, tokenizer = tokenizer_files(metadata, str(files[0].path)) if is_alone else ({}, {})
    config |= {key: generation[key] for key in ("bos_token_id", "eos_token_id") if key in generation}
    texts = {"config.json": config, "generation_config.json": generation}
    contents = {name: json.dumps(value, default=repr).encode() for name, value in texts.items()}
    # Checked here, where the file's name is known: values are still as the file has them.
    parsed = parse_config(json.loads(contents["config.json"]), f"{files[0].path} (as config.json)")
    if is_ranker(metadata):
        return contents | tokenizer | ranker_files(files, parsed.architecture, parsed.hidden_size)
    return contents | tokenizer | _embedder_files(files)


def _embedder_files(files: Sequence[GgufFile]) -> dict[str, bytes]:
    """Return the files of an embedding model; none for a file that names no pooling, or 0, which is none."""
    metadata, source = files[0].metadata, str(files[0].path)
    kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if kind is None or (type(kind) is int and kind <= 0):
        return {}
    if type(kind) is not int or kind not in POOLINGS:
        raise unsupported(source, f"the pooling {one_line(str(kind), 40)}")
    tensors = {name: tensor for file in files for name, tensor in file.tensors.items()}
    there = [name for name in DENSE_TENSORS if name in tensors]
    layers = [(folder, tensors[name]) for folder, name in zip(DENSE, there)]
    if any(len(tensor.shape) != 2 for _, tensor in layers):
        raise CheckpointError(f"{source}: {' and '.join(DENSE_TENSORS)} are no matrices: download the file again")
    steps = [DenseStep(folder, tensor.shape[0], tensor.shape[1]) for folder, tensor in layers]
    found = {path: text.encode() for path, text in embedder_files(POOLINGS[kind], steps).items()}
    for step, (_, tensor) in zip(steps, layers):
        tensor.check_readable()
        weight = tensor.read(0, step.rows).astype(np.float32)
        found[f"{step.folder}/{DENSE_WEIGHTS}"] = dense_file(step, {WEIGHT: weight})
    return found


def config_of(files: Sequence[GgufFile]) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    metadata, source = files[0].metadata, files[0].path
    name = check_architecture(metadata, source)
    shapes = {tensor: found.shape for file in files for tensor, found in file.tensors.items()}
    if "token_embd.weight" not in shapes:
        raise CheckpointError(f"{source} has no tensor token_embd.weight: it does not hold a language model")
    known = FAMILIES[name]
    values = GgufValues(metadata, name, shapes, str(source), lambda tensor: _vector(files, tensor))
    architecture = known.architecture if isinstance(known.architecture, str) else known.architecture(values)
    family = family_of(architecture)
    values.config |= values.common() | {"vocab_size": shapes["token_embd.weight"][0]}
    values.config |= _rope(files, values, family.partial_rotary)
    values.config |= {key: values.get(theirs) for key, theirs in known.keys.items()}
    values.config |= known.extra(values)
    named = {family.names.get(key, key): value for key, value in values.config.items()}
    ranks = ranker_config(architecture, shapes) if is_ranker(metadata) else {}
    return {"architectures": [architecture]} | named | ranks


# Begins the keys of Bonsai 2, whose linears read other activations than their weights' types tell.
_TURNED = "prism.hadamard."


def check_architecture(metadata: Mapping[str, Any], source: Path) -> str:
    """Return the architecture that a file's metadata name, by llama.cpp's name."""
    name = metadata.get("general.architecture")
    name = ARCHITECTURES.get(name, name) if isinstance(name, str) else name
    if isinstance(name, str) and name == CLIP:
        what = "what turns images or sound into a model's inputs, not the model"
        raise CheckpointError(f"{source} has {what}: give the model's file, and this one with it (mmproj)")
    if not isinstance(name, str) or name not in FAMILIES:
        raise unsupported(str(source), f"architecture {one_line(str(name), 40)!r}")
    if any(key.startswith(_TURNED) for key in metadata):
        raise unsupported(str(source), "a model whose activations are turned (Hadamard)")
    experts = GgufValues(metadata, name, {}, str(source)).get("expert_count")
    if experts and not FAMILIES[name].experts:
        raise unsupported(str(source), f"a mixture of experts of {name}")
    return name


def _rope(files: Sequence[GgufFile], values: GgufValues, partial_rotary: bool) -> dict[str, Any]:
    """Return the configuration's keys of the rotary embedding.

    llama.cpp stores the divisors of frequencies as tensors, for Llama 3.1 as for Phi-3: LongRoPE has them as keys.
    """
    keys = ("type", "factor", "original_context_length", "attn_factor", "yarn_beta_fast", "yarn_beta_slow")
    scaling = {key: values.get(f"rope.scaling.{key}") for key in keys}
    trained = scaling["original_context_length"] or values.config.get("max_position_embeddings")
    found: dict[str, Any] = {}
    head_dim = positive(values.config.get("head_dim"), 0)
    rotary_dim = values.number("rope.dimension_count", 0)
    if head_dim and rotary_dim and (partial_rotary or rotary_dim != head_dim):
        found["partial_rotary_factor"] = rotary_dim / head_dim
    if (both := _vector(files, "rope_freqs.weight")) is not None:
        section = {"short_factor": both, "long_factor": both, "attention_factor": 1.0}
        return found | {"rope_scaling": {"rope_type": "longrope", **section}}
    short, long = (_vector(files, f"rope_factors_{kind}.weight") for kind in ("short", "long"))
    if short is not None and long is not None:
        scaled: dict[str, Any] = {"rope_type": "longrope", "short_factor": short, "long_factor": long}
        scaled |= {"attention_factor": scaling["attn_factor"]} if scaling["attn_factor"] else {}
        scaled |= {"original_max_position_embeddings": trained}
        return found | {"rope_scaling": scaled, "original_max_position_embeddings": trained}
    if scaling["type"] in (None, "none"):
        # Not the scaling that some families have where a `config.json` names none.
        return found | {"rope_parameters": {"rope_type": "default"}}
    section = {"rope_type": scaling["type"], "factor": scaling["factor"]}
    if scaling["type"] == "yarn":
        section |= {"original_max_position_embeddings": trained}
        section |= present({"beta_fast": scaling["yarn_beta_fast"], "beta_slow": scaling["yarn_beta_slow"]})
    return found | {"rope_scaling": section}


def _vector(files: Sequence[GgufFile], name: str) -> list[float] | None:
    """Return the numbers of a tensor of one axis; None where there is none of this name."""
    tensor = next((file.tensors[name] for file in files if name in file.tensors), None)
    if tensor is None:
        return None
    tensor.check_readable()
    if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_PAIRS:
        raise CheckpointError(f"{tensor.path}: tensor {name} has shape {tensor.shape}: download the file again")
    numbers: list[float] = tensor.read(0, tensor.shape[0]).astype(np.float64).tolist()
    return numbers
