"""The vision tower of an mmproj file, with which the checkpoint of a language model's GGUF file becomes one that sees.

llama.cpp keeps tower and connector in a GGUF file of their own (github.com/ggml-org/llama.cpp: conversion/ writes it,
tools/mtmd/clip.cpp reads it). What no file says of the preparation of images is what `models.image_preparation` takes
by default, and llama.cpp has the same by the kind of tower.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinychat.checkpoint.gguf import CLIP, LEFT_OUT, SEES_BY
from tinychat.checkpoint.gguf_file import GgufFile, open_gguf
from tinychat.checkpoint.gguf_values import MOST, GgufValues, present
from tinychat.checkpoint.tensor_part import PatchRows
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError, TinychatError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import expected_shapes, family_of, parse_config
from tinychat.models.image_preparation import IMAGE_PROCESSOR
from tinychat.models.multimodal import LFM2_VL
from tinychat.models.vision import Vision, read_vision

# In the folder of a checkpoint.
TOWER_LINK = "mmproj-tower.gguf"
# Before the names of the tower's tensors there.
_STEM = "vision_tower."
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# Names of a tower's tensors by those of the checkpoint; those of a layer stand behind its number.
_SIGLIP = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_PATCHES, _POSITIONS, _DOWN = "v.patch_embd.weight", "v.position_embd.weight", "v.blk.0.ffn_down.weight"
# Keys of a tower's section by those of the metadata, which begin with ``clip.vision``.
_SECTION = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
_Keys = dict[str, Any]


@dataclass(frozen=True)
class Projector:
    """A kind of towers and connectors, by llama.cpp's name of it.

    `read` returns keys of ``config.json``, among them the tower's section, and of ``preprocessor_config.json``.
    """

    wrapper: str  # the checkpoint's architecture
    image_token: str  # its text in the vocabulary of the language model
    read: Callable[[GgufValues], tuple[_Keys, _Keys]]
    connector: Mapping[str, str]  # names of its tensors by those in `models.vision`
    tower: Mapping[str, str]
    channels_last: bool = False  # whether the checkpoint's first linear reads a patch by row, column and channel


def _idefics3(values: GgufValues) -> tuple[_Keys, _Keys]:
    section = _section(values)
    if section["layer_norm_eps"] == 1e-5:
        # What the converter writes where a `config.json` has no value, as SmolVLM's; transformers takes the other.
        section["layer_norm_eps"] = 1e-6
    tile = section["image_size"]
    # Files of before September 2025 do not say. All published models have four times the size of a tile.
    longest = values.get("vision.preproc_image_size") or (4 * tile if type(tile) is int else tile)
    config = {"vision_config": section, "scale_factor": values.get("vision.projector.scale_factor")}
    sizes = {"max_image_size": {"longest_edge": tile}, "size": {"longest_edge": longest}}
    return config, {"image_processor_type": "Idefics3ImageProcessor", **sizes}


def _lfm2(values: GgufValues) -> tuple[_Keys, _Keys]:
    section, shapes = _section(values), values.tensors
    # The size of images means nothing: tiles have any.
    del section["image_size"]
    config = {
        "vision_config": {**section, "num_patches": shapes.get(_POSITIONS, (0,))[0]},
        "downsample_factor": values.get("vision.projector.scale_factor"),
        "projector_hidden_size": shapes.get("mm.1.weight", (0,))[0],
        "projector_bias": "mm.1.bias" in shapes,
        "projector_use_layernorm": "mm.input_norm.weight" in shapes,
    }
    return config, {"image_processor_type": "Lfm2VlImageProcessor"}


# By ``clip.projector_type``.
PROJECTORS: Mapping[str, Projector] = {
    "idefics3": Projector("Idefics3ForConditionalGeneration", "<image>", _idefics3, {"proj": "mm.model.fc"}, _SIGLIP),
    "lfm2": Projector(
        LFM2_VL,
        "<image>",
        _lfm2,
        {"layer_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"},
        _SIGLIP,
        channels_last=True,
    ),
}


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
    config, processor = projector.read(values)
    if values.get("vision.projection_dim") != text.hidden_size:
        raise CheckpointError(f"{path} and {model.path} are of different models: their rows differ in size")
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or projector.image_token not in tokens:
        raise CheckpointError(f"{path} and {model.path} are of different models: this has no {projector.image_token}")
    config |= {
        "architectures": [projector.wrapper],
        "image_token_id": tokens.index(projector.image_token),
        "text_config": {**alone, "model_type": family_of(text.architecture).model_type},
        **{key: alone[key] for key in ("bos_token_id", "eos_token_id") if key in alone},
        SEES_BY: path.name,
    }
    processor |= present({key: _decimal(values.raw(f"vision.{key}")) for key in ("image_mean", "image_std")})
    (folder / TOWER_LINK).symlink_to(path.resolve())
    for name, content in (("config.json", config), (IMAGE_PROCESSOR, processor)):
        (folder / name).write_text(json.dumps(content, default=repr))
    try:
        whole = parse_config(read_json_object(folder / "config.json"), str(path))
        vision = read_vision(folder)
        if vision is None or whole.architecture != text.architecture:
            raise UnsupportedModelError(f"{path}: a tower beside {text.architecture} is not supported")
        _tensors(file, vision)
    except (CheckpointError, UnsupportedModelError) as error:
        message = str(error)
        for name in ("config.json", IMAGE_PROCESSOR):
            message = message.replace(str(folder / name), f"{path} (as {name})")
        raise type(error)(message) from None


def _open_mmproj(path: Path) -> GgufFile:
    file = open_gguf(path)[0]
    kind = file.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind != CLIP:
        raise CheckpointError(f"{path} is no mmproj file, but a model ({one_line(str(kind), 40)}): give the other one")
    return file


def _projector_of(file: GgufFile) -> Projector:
    # The second is that of files for images and sound.
    kinds = [file.metadata.get(f"{CLIP}.{key}") for key in ("projector_type", "vision.projector_type")]
    kind = next((each for each in kinds if isinstance(each, str)), "")
    if kind not in PROJECTORS:
        raise UnsupportedModelError(f"{file.path}: projector {one_line(kind, 40)!r} is not supported")
    return PROJECTORS[kind]


def _section(values: GgufValues) -> _Keys:
    """Return the section of a SigLIP tower."""
    found = {key: _decimal(values.get(f"vision.{theirs}")) for key, theirs in _SECTION.items()}
    for key, theirs in _SECTION.items():
        if found[key] is None:
            raise CheckpointError(f"{values.source} has no value {CLIP}.vision.{theirs}: download it again")
    # llama.cpp takes the last one where a file names neither.
    acts = {"use_gelu": "gelu_pytorch_tanh", "use_silu": "silu"}
    return found | {"hidden_act": next((act for key, act in acts.items() if values.get(key) is True), "quick_gelu")}


def _decimal(value: object) -> object:
    """Return a number that was stored as a float32 as it was written before, in decimals; in a list, all of them."""
    if isinstance(value, list):
        return [_decimal(each) for each in value]
    return float(str(np.float32(value))) if type(value) is float and abs(value) < MOST else value


def _tensors(file: GgufFile, vision: Vision) -> dict[str, Tensor]:
    """Return the tensors of tower and connector by the checkpoint's names; refuse others than must be there."""
    projector, found = _projector_of(file), dict[str, Tensor]()
    for name, stored, shape in _names(file, vision, projector):
        tensor = file.tensors.get(stored)
        if tensor is None:
            raise CheckpointError(f"{file.path} has no tensor {stored}: download it again")
        if tensor.shape != shape:
            what = f"{stored} has shape {list(tensor.shape)}; expected {list(shape)}"
            raise CheckpointError(f"{file.path}: {what}: download it again, or the file of this model")
        tensor.check_readable()
        is_turned = stored == _PATCHES and projector.channels_last
        found[name] = PatchRows(tensor, channels_last=True) if is_turned else tensor
    return found


def _names(file: GgufFile, vision: Vision, projector: Projector) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the name of each tensor in the checkpoint, and its name and shape in the file."""
    config = parse_config(vision.tower, f"{file.path} (as config.json): vision_config")
    names = dict(projector.tower)
    if _DOWN in file.tensors and file.tensors[_DOWN].shape == (config.intermediate_size, config.hidden_size):
        # In older files each has the other's name.
        names["mlp.fc1"], names["mlp.fc2"] = names["mlp.fc2"], names["mlp.fc1"]
    for name, shape in expected_shapes(config):
        layer = _LAYER.match(name)
        part, _, ending = name.removeprefix(layer[0] if layer else "").rpartition(".")
        stored = f"v.blk.{layer[1]}.{names[part]}.{ending}" if layer else f"{names[part]}.{ending}"
        if stored == _PATCHES:
            side = vision.preparation.patch_size
            shape = (config.hidden_size, 3, side, side)
        yield f"{_STEM}{name}", stored, shape
    for name, shape in vision.connector.shapes.items():
        part, _, ending = name.rpartition(".")
        yield f"{vision.connector.stem}{name}", f"{projector.connector[part]}.{ending}", shape
