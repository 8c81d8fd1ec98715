"""The vision tower of an mmproj file, with which the checkpoint of a language model's GGUF file becomes one that sees.

llama.cpp keeps tower and connector in a GGUF file of their own (github.com/ggml-org/llama.cpp: conversion/ writes it,
tools/mtmd/clip.cpp reads it); `checkpoint.gguf_projectors` has the kinds of these.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinychat.checkpoint.gguf import CLIP, LEFT_OUT, SEES_BY
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.checkpoint.gguf_ollama_towers import PATCHES, TowerFile, has_tower, tower_inside
from tinychat.checkpoint.gguf_projectors import POSITIONS, PROJECTORS, Keys, Projector, decimal, tensor_of
from tinychat.checkpoint.gguf_tokenizer import tokenizer_files
from tinychat.checkpoint.gguf_values import GgufValues, present
from tinychat.checkpoint.gguf_vocabulary import CONTROL
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError, TinychatError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import expected_shapes, family_of, parse_config, tables
from tinychat.models.clipped_linears import BOUNDS, PARTS, WITHIN
from tinychat.models.config import ModelConfig
from tinychat.models.image_preparation import IMAGE_PROCESSOR
from tinychat.models.vision import Vision, read_vision

# In the folder of a checkpoint.
TOWER_LINK = "mmproj-tower.gguf"
_LAYER = re.compile(r"(?:encoder\.layers|blocks)\.(\d+)\.")
# In older files each has the other's name.
_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
_DOWN = "v.blk.0.ffn_down.weight"
# Keys of a text model's that are the whole model's too.
_OF_ALL = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def add_tower(folder: Path, model: GgufFile, files: Sequence[Path], is_asked_for: bool) -> None:
    """Make a checkpoint folder of a language model one of a model that sees, by the tower of an mmproj file.

    Kinds of towers that are not supported are left out, and so are files that nobody asked for and that cannot be used:
    ``config.json`` has the reason then. Others raise `CheckpointError`.

    model : the language model's file; files : that with the tower, or all that lie beside the language model's.
    """
    path = folder / "config.json"
    alone = read_json_object(path)
    try:
        if len(files) > 1:
            names = ", ".join(one_line(file.name, 60) for file in files[:4])
            raise CheckpointError(f"several mmproj files lie beside {model.path.name} ({names}): name one of them")
        _add(folder, model, files[0], alone)
    except TinychatError as error:
        if is_asked_for and not isinstance(error, UnsupportedModelError):
            raise
        for name in (IMAGE_PROCESSOR, TOWER_LINK):
            (folder / name).unlink(missing_ok=True)
        # A model folder has the same bytes wherever its sources lay.
        reason = str(error).replace(str(model.path), model.path.name).replace(str(files[0]), files[0].name)
        path.write_text(json.dumps({**alone, LEFT_OUT: reason}))


def tower_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of tower and connector by the checkpoint's names; none where its folder has no mmproj file."""
    path = folder / TOWER_LINK
    vision = read_vision(folder) if path.is_file() else None
    return {} if vision is None else _tensors(_open_mmproj(path.resolve()), vision)


def _add(folder: Path, model: GgufFile, path: Path, alone: Mapping[str, object]) -> None:
    file = _open_mmproj(path)
    projector, shapes = _projector_of(file), {name: tensor.shape for name, tensor in file.tensors.items()}
    values = GgufValues(file.metadata, CLIP, shapes, str(path))
    text = parse_config(alone, str(model.path))
    wrapper = projector.wrapper_of(text.architecture)
    if wrapper is None:
        raise UnsupportedModelError(f"{path}: its tower beside {text.architecture} is not supported")
    config, processor = projector.read(values)
    if values.get("vision.projection_dim") != text.hidden_size:
        raise CheckpointError(f"{path} and {model.path} are of different models: their rows differ in size")
    metadata, image_token_id = _with_image_token(model.metadata, projector)
    if image_token_id is None:
        raise CheckpointError(f"{path} and {model.path} are of different models: this has no {projector.image_token}")
    written = GgufValues(metadata, str(metadata.get("general.architecture")), {}, str(model.path))
    stacked = config["vision_config"].get("deepstack_visual_indexes", [])
    if written.get("n_deepstack_layers", 0) != len(stacked):
        raise CheckpointError(f"{path} and {model.path} are of different models: layers that get images differ")
    model_type = family_of(text.architecture).model_type
    config |= {
        "architectures": [wrapper],
        "image_token_id": image_token_id,
        "text_config": _with_axes({**alone, **projector.of_text(text), "model_type": model_type}, written),
        **{key: alone[key] for key in _OF_ALL if key in alone},
        SEES_BY: path.name,
    }
    processor |= present({key: decimal(values.raw(f"vision.{key}")) for key in ("image_mean", "image_std")})
    (folder / TOWER_LINK).symlink_to(path.resolve())
    for name, content in (("config.json", config), (IMAGE_PROCESSOR, processor)):
        (folder / name).write_text(json.dumps(content, default=repr))
    try:
        whole = parse_config(read_json_object(folder / "config.json"), str(path))
        vision = read_vision(folder)
        if vision is None or whole.architecture != text.architecture:
            raise UnsupportedModelError(f"{path}: a tower beside {text.architecture} is not supported")
        _tensors(file, vision)
        if metadata is not model.metadata:
            for name, data in tokenizer_files(metadata, str(model.path))[1].items():
                (folder / name).write_bytes(data)
    except (CheckpointError, UnsupportedModelError) as error:
        message = str(error)
        for name in ("config.json", IMAGE_PROCESSOR):
            message = message.replace(str(folder / name), f"{path} (as {name})")
        raise type(error)(message) from None


def _with_image_token(metadata: Mapping[str, Any], projector: Projector) -> tuple[Mapping[str, Any], int | None]:
    """Return a model's metadata with a vocabulary that has the image token, and its id; None where there is none."""
    tokens, kinds = metadata.get(_TOKENS), metadata.get(_KINDS)
    tokens = tokens if isinstance(tokens, list) else []
    if projector.image_token in tokens:
        return metadata, tokens.index(projector.image_token)
    unused = [i for i, token in enumerate(tokens) if projector.unused and str(token).startswith(projector.unused)]
    if not unused or not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        return metadata, None
    # Images have rows of their own: that of the token is never read.
    i, kinds = unused[-1], kinds.copy()
    kinds[i] = CONTROL
    return {**metadata, _TOKENS: [*tokens[:i], projector.image_token, *tokens[i + 1 :]], _KINDS: kinds}, i


def _with_axes(section: Keys, written: GgufValues) -> Keys:
    """Return the section of a text model with the pairs of channels that turn by each axis of positions."""
    counts = written.raw("rope.dimension_sections")
    if not isinstance(counts, list):
        return section
    key = "rope_scaling" if section.get("rope_scaling") else "rope_parameters"
    # A fourth one is always 0.
    return section | {key: {**(section.get(key) or {}), "mrope_section": counts[:3]}}


def _open_mmproj(path: Path) -> TowerFile:
    file = open_gguf(path)[0]
    kind = file.metadata.get("general.architecture")
    if has_tower(file):
        return tower_inside(file)
    if not isinstance(kind, str) or kind != CLIP:
        raise CheckpointError(f"{path} is no mmproj file, but a model ({one_line(str(kind), 40)}): give the other one")
    return TowerFile(path, file.metadata, file.tensors)


def _projector_of(file: TowerFile) -> Projector:
    # The second is that of files for images and sound.
    kinds = [file.metadata.get(f"{CLIP}.{key}") for key in ("projector_type", "vision.projector_type")]
    kind = next((each for each in kinds if isinstance(each, str)), "")
    if kind not in PROJECTORS:
        raise UnsupportedModelError(f"{file.path}: projector {one_line(kind, 40)!r} is not supported")
    return PROJECTORS[kind]


def _tensors(file: TowerFile, vision: Vision) -> dict[str, Tensor]:
    """Return the tensors of tower and connector by the checkpoint's names; refuse others than must be there."""
    projector, found = _projector_of(file), dict[str, Tensor]()
    for name, stored, shape in _names(file, vision, projector):
        tensor: Tensor = tensor_of(file, stored)
        if tensor.shape != shape:
            what = f"{stored} has shape {list(tensor.shape)}; expected {list(shape)}"
            raise CheckpointError(f"{file.path}: {what}: download it again, or the file of this model")
        restored = projector.restored.get(stored)
        found[name] = restored(tensor, file) if restored else tensor
        # Of parts that do not fit together there is none.
        _ = found[name].shape
    return found


def _stored_shapes(config: ModelConfig, file: TowerFile) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name of each of the tower's tensors as a checkpoint stores it, and its shape there."""
    by_axis = [f"{table.source}.weight" for table in tables(config) if config.position_axes]
    for name, shape in expected_shapes(config):
        if BOUNDS in name:
            yield from ((f"{name.partition(BOUNDS)[0]}.{part}", (1,)) for part in PARTS)
        elif name in by_axis:
            found = file.tensors[POSITIONS].shape if POSITIONS in file.tensors else ()
            yield name, (2, max(config.position_axes, *found[1:2]), config.hidden_size)
        else:
            # Parts of one tensor stand in another order.
            whole, is_of_parts, _ = name.partition("[")
            yield f"{whole}.weight" if is_of_parts else name, shape


def _names(file: TowerFile, vision: Vision, projector: Projector) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the name of each tensor in the checkpoint, and its name and shape in the file."""
    config = parse_config(vision.tower, f"{file.path} (as config.json): vision_config")
    names = projector.tower
    if _DOWN in file.tensors and file.tensors[_DOWN].shape == (config.intermediate_size, config.hidden_size):
        names = {name: _SWAPPED.get(theirs, theirs) for name, theirs in names.items()}
    for name, shape in _stored_shapes(config, file):
        layer = _LAYER.match(name)
        part, _, ending = name.replace(f"{WITHIN}.", ".").removeprefix(layer[0] if layer else "").rpartition(".")
        stored = f"v.blk.{layer[1]}.{names[part]}.{ending}" if layer else f"{names[part]}.{ending}"
        if stored == PATCHES:
            side = vision.preparation.patch_size
            shape = (config.hidden_size, 3, side, side)
        if ending in PARTS and stored not in file.tensors:
            # Bounds that are missing are none.
            continue
        yield f"{projector.stem}{name}", stored, shape
    for parts in (vision.connector, *vision.others):
        names = projector.connector_names(parts.layer)
        transposed = {f"{linear.name}.weight": linear.transposed for linear in parts.linears if linear.transposed}
        for name, shape in parts.shapes.items():
            part, _, ending = name.rpartition(".")
            stored = f"{names[part]}.{ending}"
            if name in transposed:
                yield f"{parts.stem}{transposed[name]}", stored, shape[::-1]
            else:
                yield f"{parts.stem}{name}", stored, shape
