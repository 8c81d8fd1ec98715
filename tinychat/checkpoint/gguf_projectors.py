"""The kinds of vision towers and connectors in mmproj files: their names and keys by those of checkpoints.

What no file says of the preparation of images is what `models.image_preparation` takes by default, and llama.cpp has
the same by the kind of tower (github.com/ggml-org/llama.cpp: conversion/ writes the files, tools/mtmd/clip.cpp reads
them).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinychat.checkpoint.adjusted import AdjustedTensor
from tinychat.checkpoint.gguf import CLIP
from tinychat.checkpoint.gguf_file import GgufTensor
from tinychat.checkpoint.gguf_ollama_towers import PATCHES, TowerFile
from tinychat.checkpoint.gguf_values import MOST, GgufValues, positive
from tinychat.checkpoint.tensor_part import FramesTensor, Matrices, PatchRows
from tinychat.checkpoint.tensors import Tensor
from tinychat.errors import CheckpointError
from tinychat.models.architectures import family_of
from tinychat.models.clipped_linears import PARTS
from tinychat.models.config import ModelConfig
from tinychat.models.multimodal import GEMMA3, GEMMA4, LFM2_VL

Keys = dict[str, Any]
POSITIONS = "v.position_embd.weight"
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
_GEMMA4 = {
    "patch_embedder.input_proj": "v.patch_embd",
    "patch_embedder.position_embedding_table": "v.position_embd",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
}
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


@dataclass(frozen=True)
class Projector:
    """A kind of towers and connectors, by llama.cpp's name of it.

    `read` returns keys of ``config.json``, among them the tower's section, and of ``preprocessor_config.json``.
    """

    # The checkpoint's architecture by that of its text model; one for any text model.
    wrappers: str | Mapping[str, str]
    image_token: str  # its text in the vocabulary of the language model
    read: Callable[[GgufValues], tuple[Keys, Keys]]
    connector: Mapping[str, str]  # names of its tensors by those in `models.vision`
    tower: Mapping[str, str]
    stem: str = "vision_tower."  # of the names of the tower's tensors in the checkpoint
    # The same of connectors that read layers of the tower, behind ``v.deepstack`` and the layer.
    others: Mapping[str, str] = field(default_factory=dict)
    # How to make the checkpoint's tensors of those that the converter changed, by their names in the file.
    restored: Mapping[str, Callable[[Tensor, TowerFile], Tensor]] = field(default_factory=dict)
    # Tokens that no text has, of which the last stands for the image token where the converter left that out.
    unused: str = ""
    # Keys of the text model's section that no file has.
    of_text: Callable[[ModelConfig], Keys] = lambda text: {}

    def wrapper_of(self, architecture: str) -> str | None:
        """Return the checkpoint's architecture with a text model of this one; None for one that has no such tower."""
        return self.wrappers if isinstance(self.wrappers, str) else self.wrappers.get(architecture)

    def connector_names(self, layer: int) -> Mapping[str, str]:
        """Return the names of a connector's tensors by those in `models.vision`; layer : see `ConnectorParts`."""
        if not layer:
            return self.connector
        return {name: f"v.deepstack.{layer - 1}.{theirs}" for name, theirs in self.others.items()}


def _idefics3(values: GgufValues) -> tuple[Keys, Keys]:
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


def _lfm2(values: GgufValues) -> tuple[Keys, Keys]:
    section, shapes = _section(values), values.tensors
    # The size of images means nothing: tiles have any.
    del section["image_size"]
    config = {
        "vision_config": {**section, "num_patches": shapes.get(POSITIONS, (0,))[0]},
        "downsample_factor": values.get("vision.projector.scale_factor"),
        "projector_hidden_size": shapes.get("mm.1.weight", (0,))[0],
        "projector_bias": "mm.1.bias" in shapes,
        "projector_use_layernorm": "mm.input_norm.weight" in shapes,
    }
    return config, {"image_processor_type": "Lfm2VlImageProcessor"}


def _gemma3(values: GgufValues) -> tuple[Keys, Keys]:
    section = _section(values)
    size, patch_size = section["image_size"], values.number("vision.patch_size", 1)
    # The files of all published models have no factor.
    factor = values.number("vision.projector.scale_factor", 4)
    side, rest = divmod(positive(size, 0) // patch_size, factor)
    if rest or not side:
        raise CheckpointError(f"{values.source}: {CLIP}.vision.projector.scale_factor does not divide the patches")
    config = {"vision_config": section, "mm_tokens_per_image": int(side) ** 2}
    return config, {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": size, "width": size}}


def _qwen3vl(values: GgufValues) -> tuple[Keys, Keys]:
    section, layers = _section(values), values.raw("vision.is_deepstack_layers")
    layers = layers if isinstance(layers, list) else []
    # The first is that of the learned positions, which are a tensor. The second is the text model's.
    del section["image_size"], section["layer_norm_eps"]
    names = family_of("QwenVisionTower").names
    section = {names.get(key, key): value for key, value in section.items()} | {
        "num_position_embeddings": values.tensors.get(POSITIONS, (0,))[0],
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


def _gemma4(values: GgufValues) -> tuple[Keys, Keys]:
    section, shapes = _section(values), values.tensors
    # The sizes of images and pools mean nothing, or are the same in all published models.
    del section["image_size"], section["hidden_act"]
    heads, (rows, *_), (keys, *_) = (
        positive(section["num_attention_heads"], 1),
        *(shapes.get(f"v.blk.0.attn_{part}.weight") or (0,) for part in "qk"),
    )
    head_dim = int(rows // heads)
    config = section | {
        "head_dim": head_dim,
        "num_key_value_heads": keys // max(head_dim, 1),
        "rms_norm_eps": section.pop("layer_norm_eps"),
        "position_embedding_size": (*shapes.get(POSITIONS, ()), 0, 0)[1],
        "use_clipped_linears": any(name.endswith(PARTS) for name in shapes if name.startswith("v.blk.")),
        "standardize": "v.std_scale" in shapes,
    }
    return {"vision_config": config}, {"image_processor_type": "Gemma4ImageProcessor"}


def _sees_as_a_whole(text: ModelConfig) -> Keys:
    """Return the key by which the tokens of an image see each other: in models without embeddings for layers."""
    is_small = text.varied is not None and text.varied.input_size > 0
    return {} if is_small else {"use_bidirectional_attention": "vision"}


# By ``clip.projector_type``.
PROJECTORS: Mapping[str, Projector] = {
    "idefics3": Projector("Idefics3ForConditionalGeneration", "<image>", _idefics3, {"proj": "mm.model.fc"}, _SIGLIP),
    "lfm2": Projector(
        LFM2_VL,
        "<image>",
        _lfm2,
        {"layer_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"},
        _SIGLIP,
        restored={PATCHES: lambda tensor, _: PatchRows(tensor, channels_last=True)},
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
    "gemma4v": Projector(
        {"Gemma4ForCausalLM": GEMMA4},
        "<|image|>",
        _gemma4,
        {"embed_vision.embedding_projection": "mm.input_projection", "vision_tower": "v"},
        _GEMMA4,
        restored={
            PATCHES: lambda tensor, _: PatchRows(tensor, channels_last=True),
            POSITIONS: lambda tensor, _: Matrices(tensor),
        },
        of_text=_sees_as_a_whole,
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
        restored={PATCHES: lambda tensor, file: FramesTensor(PATCHES, tensor, tensor_of(file, f"{PATCHES}.1"))},
    ),
}


def _section(values: GgufValues) -> Keys:
    """Return the section of a SigLIP tower."""
    found = {key: decimal(values.get(f"vision.{theirs}")) for key, theirs in _SECTION.items()}
    for key, theirs in _SECTION.items():
        if found[key] is None:
            raise CheckpointError(f"{values.source} has no value {CLIP}.vision.{theirs}: download it again")
    # llama.cpp takes the last one where a file names neither.
    acts = {"use_gelu": "gelu_pytorch_tanh", "use_silu": "silu"}
    return found | {"hidden_act": next((act for key, act in acts.items() if values.get(key) is True), "quick_gelu")}


def decimal(value: object) -> object:
    """Return a number that was stored as a float32 as it was written before, in decimals; in a list, all of them."""
    if isinstance(value, list):
        return [decimal(each) for each in value]
    return float(str(np.float32(value))) if type(value) is float and abs(value) < MOST else value


def tensor_of(file: TowerFile, name: str) -> Tensor:
    """Return a tensor of the file."""
    tensor = file.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{file.path} has no tensor {name}: download it again")
    if isinstance(tensor, GgufTensor):
        tensor.check_readable()
    return tensor
