"""The vision tower inside of a file by Ollama's own converter, as llama.cpp's mmproj file of the same model has it.

(github.com/ollama/ollama: convert/ wrote them, llama/compat lists what differs.)
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from tinychat.checkpoint.gguf import CLIP
from tinychat.checkpoint.gguf_file import GgufFile, GgufTensor
from tinychat.checkpoint.gguf_values import MAX_LAYERS, GgufValues, present
from tinychat.checkpoint.tensor_part import FrameTensor, JoinedTensor
from tinychat.checkpoint.tensors import Tensor

_SIZES = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "image_size",
    "patch_size",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "spatial_merge_size",
    "image_mean",
    "image_std",
)
# Parts of names, and llama.cpp's in their place, one after the other.
_GEMMA3 = {
    "v.patch_embedding": "v.patch_embd",
    "v.position_embedding": "v.position_embd",
    "v.post_layernorm": "v.post_ln",
    ".layer_norm1": ".ln1",
    ".layer_norm2": ".ln2",
    ".attn_output": ".attn_out",
    ".mlp.fc1": ".ffn_up",
    ".mlp.fc2": ".ffn_down",
    "mm.mm_": "mm.",
}
_QWEN = {
    "v.pos_embed": "v.position_embd",
    "v.patch_embed.": "v.patch_embd.",
    "v.merger.norm": "v.post_ln",
    "v.merger.linear_fc1": "mm.0",
    "v.merger.linear_fc2": "mm.2",
    ".mlp.linear_fc1": ".ffn_up",
    ".mlp.linear_fc2": ".ffn_down",
    ".norm1": ".ln1",
    ".norm2": ".ln2",
    ".linear_fc": ".fc",
}
_QWEN_KIND = "qwen3vl_merger"
# By the architecture: the kind of the tower, and names.
_TOWERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "gemma3": ("gemma3", _GEMMA3),
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), (_QWEN_KIND, _QWEN)),
}
_STACKED = re.compile(r"v\.deepstack(?:_merger)?\.(\d{1,4})\.")
PATCHES = "v.patch_embd.weight"


@dataclass(frozen=True)
class TowerFile:
    """A file with a vision tower: metadata and tensors by llama.cpp's names."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def has_tower(file: GgufFile) -> bool:
    """Return whether a language model's file has a vision tower of a known kind in it."""
    architecture = file.metadata.get("general.architecture")
    is_known = isinstance(architecture, str) and architecture in _TOWERS
    return is_known and f"{architecture}.vision.block_count" in file.metadata


def tower_inside(file: GgufFile) -> TowerFile:
    """Return the vision tower in a language model's file that `has_tower`."""
    architecture = file.metadata["general.architecture"]
    kind, parts = _TOWERS[architecture]
    values = GgufValues(file.metadata, architecture, {}, str(file.path))
    layers = values.raw("vision.deepstack_visual_indexes")
    layers = layers if isinstance(layers, list) else []
    tensors: dict[str, Tensor] = {}
    for name, tensor in file.tensors.items():
        if name.startswith(("v.", "mm.")):
            tensor.check_readable()
            tensors[_renamed(name, parts, layers)] = tensor
    found = {f"vision.{key}": values.raw(f"vision.{key}") for key in _SIZES}
    found |= {"projector_type": kind, "use_gelu": True, "vision.projection_dim": values.get("embedding_length")}
    if kind == _QWEN_KIND:
        found = _of_qwen(values, layers, tensors) | present(found)
        _join(tensors)
    else:
        patches = values.number("vision.image_size", 0) // values.number("vision.patch_size", 1)
        found["vision.projector.scale_factor"] = patches / sqrt(values.number("mm.tokens_per_image", 256))
    metadata = {f"{CLIP}.{key}": value for key, value in present(found).items()}
    return TowerFile(file.path, {"general.architecture": CLIP, **metadata}, tensors)


def _renamed(name: str, parts: Mapping[str, str], layers: list[Any]) -> str:
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    number = _STACKED.match(name)
    if number is None or int(number[1]) >= len(layers):
        return name
    return f"v.deepstack.{layers[int(number[1])]}.{name.removeprefix(number[0])}"


def _of_qwen(values: GgufValues, layers: Iterable[Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the values that files of Qwen lack, and those that have other names."""
    up, count = tensors.get("v.blk.0.ffn_up.weight"), int(values.number("vision.block_count", 0))
    return {
        # The first two mean nothing.
        "vision.image_size": values.get("vision.patch_size"),
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.feed_forward_length": up.shape[0] if up else None,
        "vision.is_deepstack_layers": [layer in layers for layer in range(min(count, MAX_LAYERS))],
        "vision.image_min_pixels": values.get("vision.shortest_edge") or None,
        "vision.image_max_pixels": values.get("vision.longest_edge") or None,
    }


def _join(tensors: dict[str, Tensor]) -> None:
    """Join the queries, keys and values of layers, and give each frame of patches a tensor."""
    for name in [name for name in tensors if name.startswith("v.blk.") and ".attn_q." in name]:
        own = [tensors.get(name.replace(".attn_q.", f".attn_{part}.")) for part in "qkv"]
        whole = name.replace(".attn_q.", ".attn_qkv.")
        tensors[whole] = JoinedTensor(whole, [tensor for tensor in own if tensor is not None])
    patches = tensors.get(PATCHES)
    if isinstance(patches, GgufTensor) and f"{PATCHES}.1" not in tensors:
        tensors |= {PATCHES: FrameTensor(patches, 0), f"{PATCHES}.1": FrameTensor(patches, 1)}
