"""The vision tower of an mmproj file, with which the checkpoint of a language model's GGUF file becomes one that sees.

llama.cpp keeps tower and connector in a GGUF file of their own (github.com/ggml-org/llama.cpp: conversion/ writes it,
tools/mtmd/clip.cpp reads it). What no file says of the preparation of images is what `models.image_preparation` takes
by default, and llama.cpp has the same by the kind of tower.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tinychat.checkpoint.adjusted import AdjustedTensor
from tinychat.checkpoint.gguf import CLIP, LEFT_OUT, SEES_BY
from tinychat.checkpoint.gguf_file import GgufFile, GgufTensor, open_gguf
from tinychat.checkpoint.gguf_ollama_towers import TowerFile, has_tower, tower_inside
from tinychat.checkpoint.gguf_tokenizer import tokenizer_files
from tinychat.checkpoint.gguf_values import MOST, GgufValues, positive, present
from tinychat.checkpoint.gguf_vocabulary import CONTROL
from tinychat.checkpoint.tensor_part import FramesTensor, PatchRows
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError, TinychatError, UnsupportedModelError
from tinychat.json_file import one_line, read_json_object
from tinychat.models.architectures import expected_shapes, family_of, parse_config
from tinychat.models.image_preparation import IMAGE_PROCESSOR
from tinychat.models.multimodal import GEMMA3, LFM2_VL
from tinychat.models.vision import Vision, read_vision

# In the folder of a checkpoint.
TOWER_LINK = "mmproj-tower.gguf"
_LAYER = re.compile(r"(?:encoder\.layers|blocks)\.(\d+)\.")
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
_QWEN = {
    "patch_embed.proj": "v.patch_embd",
    "pos_embed": "v.position_embd",
    "merger.norm": "v.post_ln",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}
# In older files each has the other's name.
_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
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
# Keys of a text model's that are the whole model's too.
_OF_ALL = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
_TOKENS, _KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_Keys = dict[str, Any]


@dataclass(frozen=True)
class Projector:
    """A kind of towers and connectors, by llama.cpp's name of it.

    `read` returns keys of ``config.json``, among them the tower's section, and of ``preprocessor_config.json``.
    """

    # The checkpoint's architecture by that of its text model; one for any text model.
    wrappers: str | Mapping[str, str]
    image_token: str  # its text in the vocabulary of the language model
    read: Callable[[GgufValues], tuple[_Keys, _Keys]]
    connector: Mapping[str, str]  # names of its tensors by those in `models.vision`
    tower: Mapping[str, str]
    stem: str = "vision_tower."  # of the names of the tower's tensors in the checkpoint
    # The same of connectors that read layers of the tower, behind ``v.deepstack`` and the layer.
    others: Mapping[str, str] = field(default_factory=dict)
    # How to make the checkpoint's tensors of those that the converter changed, by their names in the file.
    restored: Mapping[str, Callable[[Tensor, TowerFile], Tensor]] = field(default_factory=dict)
    # Tokens that no text has, of which the last stands for the image token where the converter left that out.
    unused: str = ""

    def wrapper_of(self, architecture: str) -> str | None:
        """Return the checkpoint's architecture with a text model of this one; None for one that has no such tower."""
        return self.wrappers if isinstance(self.wrappers, str) else self.wrappers.get(architecture)

    def connector_names(self, layer: int) -> Mapping[str, str]:
        """Return the names of a connector's tensors by those in `models.vision`; layer : see `ConnectorParts`."""
        if not layer:
            return self.connector
        return {name: f"v.deepstack.{layer - 1}.{theirs}" for name, theirs in self.others.items()}


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


def _gemma3(values: GgufValues) -> tuple[_Keys, _Keys]:
    section = _section(values)
    size, patch_size = section["image_size"], values.number("vision.patch_size", 1)
    # The files of all published models have no factor.
    factor = values.number("vision.projector.scale_factor", 4)
    side, rest = divmod(positive(size, 0) // patch_size, factor)
    if rest or not side:
        raise CheckpointError(f"{values.source}: {CLIP}.vision.projector.scale_factor does not divide the patches")
    config = {"vision_config": section, "mm_tokens_per_image": int(side) ** 2}
    return config, {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": size, "width": size}}


def _qwen3vl(values: GgufValues) -> tuple[_Keys, _Keys]:
    section, layers = _section(values), values.raw("vision.is_deepstack_layers")
    layers = layers if isinstance(layers, list) else []
    # The first is that of the learned positions, which are a tensor. The second is the text model's.
    del section["image_size"], section["layer_norm_eps"]
    names = family_of("QwenVisionTower").names
    section = {names.get(key, key): value for key, value in section.items()} | {
        "num_position_embeddings": values.tensors.get(_POSITIONS, (0,))[0],
        "spatial_merge_size": values.get("vision.spatial_merge_size"),
        "out_hidden_size": values.get("vision.projection_dim"),
        "deepstack_visual_indexes": [layer for layer, is_read in enumerate(layers) if is_read],
    }
    # Those of the checkpoints, for files that do not say.
    pixels = {
        "shortest_edge": values.get("vision.image_min_pixels", 1 << 16),
        "longest_edge": values.get("vision.image_max_pixels", 1 << 24),
    }
    halves = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return {"vision_config": section}, {"image_processor_type": "Qwen2VLImageProcessor", "size": pixels, **halves}


# By ``clip.projector_type``.
PROJECTORS: Mapping[str, Projector] = {
    "idefics3": Projector("Idefics3ForConditionalGeneration", "<image>", _idefics3, {"proj": "mm.model.fc"}, _SIGLIP),
    "lfm2": Projector(
        LFM2_VL,
        "<image>",
        _lfm2,
        {"layer_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"},
        _SIGLIP,
        restored={_PATCHES: lambda tensor, _: PatchRows(tensor, channels_last=True)},
    ),
    "gemma3": Projector(
        {"Gemma3ForCausalLM": GEMMA3},
        "<image_soft_token>",
        _gemma3,
        {"mm_soft_emb_norm": "mm.soft_emb_norm", "mm_input_projection": "mm.input_projection"},
        _SIGLIP,
        restored={"mm.soft_emb_norm.weight": lambda tensor, _: AdjustedTensor(tensor, offset=-1.0)},
        unused="<unused",
    ),
    "qwen3vl_merger": Projector(
        {
            "Qwen3ForCausalLM": "Qwen3VLForConditionalGeneration",
            "Qwen3MoeForCausalLM": "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForCausalLM": "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM": "Qwen3_5MoeForConditionalGeneration",
        },
        "<|image_pad|>",
        _qwen3vl,
        {"linear_fc1": "mm.0", "linear_fc2": "mm.2"},
        _QWEN,
        stem="visual.",
        others={"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"},
        # Each frame is a tensor.
        restored={_PATCHES: lambda tensor, file: FramesTensor(_PATCHES, tensor, _stored(file, f"{_PATCHES}.1"))},
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
    config |= {
        "architectures": [wrapper],
        "image_token_id": image_token_id,
        "text_config": _with_axes({**alone, "model_type": family_of(text.architecture).model_type}, written),
        **{key: alone[key] for key in _OF_ALL if key in alone},
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


def _with_axes(section: _Keys, written: GgufValues) -> _Keys:
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


def _tensors(file: TowerFile, vision: Vision) -> dict[str, Tensor]:
    """Return the tensors of tower and connector by the checkpoint's names; refuse others than must be there."""
    projector, found = _projector_of(file), dict[str, Tensor]()
    for name, stored, shape in _names(file, vision, projector):
        tensor: Tensor = _stored(file, stored)
        if tensor.shape != shape:
            what = f"{stored} has shape {list(tensor.shape)}; expected {list(shape)}"
            raise CheckpointError(f"{file.path}: {what}: download it again, or the file of this model")
        restored = projector.restored.get(stored)
        found[name] = restored(tensor, file) if restored else tensor
        # Of parts that do not fit together there is none.
        _ = found[name].shape
    return found


def _stored(file: TowerFile, name: str) -> Tensor:
    """Return a tensor of the file."""
    tensor = file.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{file.path} has no tensor {name}: download it again")
    if isinstance(tensor, GgufTensor):
        tensor.check_readable()
    return tensor


def _names(file: TowerFile, vision: Vision, projector: Projector) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the name of each tensor in the checkpoint, and its name and shape in the file."""
    config = parse_config(vision.tower, f"{file.path} (as config.json): vision_config")
    names = projector.tower
    if _DOWN in file.tensors and file.tensors[_DOWN].shape == (config.intermediate_size, config.hidden_size):
        names = {name: _SWAPPED.get(theirs, theirs) for name, theirs in names.items()}
    for name, shape in expected_shapes(config):
        layer = _LAYER.match(name)
        part, _, ending = name.removeprefix(layer[0] if layer else "").rpartition(".")
        stored = f"v.blk.{layer[1]}.{names[part]}.{ending}" if layer else f"{names[part]}.{ending}"
        if stored == _PATCHES:
            side = vision.preparation.patch_size
            shape = (config.hidden_size, 3, side, side)
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
