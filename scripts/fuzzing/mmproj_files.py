"""Files with the vision tower of a GGUF file: sound ones, and a function that reads one as a conversion would."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.conversion.vision import open_vision
from tinychat.models.clipped_linears import PARTS
from tinychat.models.layout import Quantization

NAME, MODEL = "mmproj.gguf", "model.gguf"
# By the architecture of the text model: the ending of the reader's name, and the image token or what stands for it.
KINDS = {
    "llama": ("", "<image>"),
    "gemma3": ("_gemma3", "<unused1>"),
    "gemma4": ("_gemma4", "<|image|>"),
    "qwen3vl": ("_qwen3vl", "<|image_pad|>"),
}
# Ollama has these in a model's own file.
INSIDE = ("gemma3", "qwen3vl")
_PROJECTORS = {"llama": "idefics3", "gemma3": "gemma3", "gemma4": "gemma4v", "qwen3vl": "qwen3vl_merger"}
_WIDTH, _SIDE, _TEXT_WIDTH = 16, 4, 32
_JOINED = 4 * _WIDTH


def _shapes(architecture: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a tower of one layer, and of its connectors."""
    if architecture == "gemma4":
        return _gemma4_shapes()
    is_qwen = architecture == "qwen3vl"
    queries = {"attn_qkv": 3 * _WIDTH} if is_qwen else dict.fromkeys(("attn_q", "attn_k", "attn_v"), _WIDTH)
    parts: dict[str, tuple[int, ...]] = {f"v.blk.0.{name}": (rows, _WIDTH) for name, rows in queries.items()}
    parts |= {"v.blk.0.attn_out": (_WIDTH, _WIDTH)}
    parts |= {"v.blk.0.ffn_up": (32, _WIDTH), "v.blk.0.ffn_down": (_WIDTH, 32)}
    parts |= {"v.patch_embd": (_WIDTH, 3, _SIDE, _SIDE)}
    parts |= {f"v.blk.0.{name}": (_WIDTH,) for name in ("ln1", "ln2")} | {"v.post_ln": (_WIDTH,)}
    if is_qwen:
        parts |= {"v.deepstack.0.norm": (_JOINED,)}
        parts |= dict.fromkeys(("mm.0", "v.deepstack.0.fc1"), (_JOINED, _JOINED))
        parts |= dict.fromkeys(("mm.2", "v.deepstack.0.fc2"), (_TEXT_WIDTH, _JOINED))
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in parts.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    found["v.position_embd.weight"] = (4, _WIDTH)
    if is_qwen:
        found["v.patch_embd.weight.1"] = (_WIDTH, 3, _SIDE, _SIDE)
    elif architecture == "gemma3":
        found |= {"mm.soft_emb_norm.weight": (_WIDTH,), "mm.input_projection.weight": (_WIDTH, _TEXT_WIDTH)}
    else:
        found["mm.model.fc.weight"] = (_TEXT_WIDTH, _JOINED)
    return found


def _gemma4_shapes() -> dict[str, tuple[int, ...]]:
    linears: dict[str, tuple[int, ...]] = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (_WIDTH, _WIDTH))
    linears |= {"ffn_gate": (32, _WIDTH), "ffn_up": (32, _WIDTH), "ffn_down": (_WIDTH, 32)}
    norms = dict.fromkeys(("ln1", "ln2", "attn_post_norm", "ffn_post_norm"), (_WIDTH,))
    norms |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (_WIDTH // 2,))
    found: dict[str, tuple[int, ...]] = {f"v.blk.0.{name}.weight": shape for name, shape in (linears | norms).items()}
    found |= {f"v.blk.0.{name}.{part}": (1,) for name in linears for part in PARTS}
    found |= {"v.patch_embd.weight": (_WIDTH, 3, _SIDE, _SIDE), "v.position_embd.weight": (2, 840, _WIDTH)}
    return found | {
        "v.std_bias": (_WIDTH,),
        "v.std_scale": (_WIDTH,),
        "mm.input_projection.weight": (_TEXT_WIDTH, _WIDTH),
    }


@cache
def mmproj_file(architecture: str) -> bytes:
    """Return a tower of one layer, for images of 2 by 2 patches of 4 pixels, beside a model of 32 channels."""
    import gguf

    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / NAME, "clip")
        writer.add_clip_projector_type(_PROJECTORS[architecture])
        writer.add_vision_use_gelu(True)
        writer.add_vision_projection_dim(_TEXT_WIDTH)
        writer.add_vision_image_size(2 * _SIDE)
        writer.add_vision_patch_size(_SIDE)
        writer.add_vision_embedding_length(_WIDTH)
        writer.add_vision_feed_forward_length(32)
        writer.add_vision_block_count(1)
        writer.add_vision_head_count(2)
        writer.add_vision_attention_layernorm_eps(1e-6)
        writer.add_vision_image_mean([0.5, 0.5, 0.5])
        writer.add_vision_image_std([0.5, 0.5, 0.5])
        if architecture == "qwen3vl":
            writer.add_vision_spatial_merge_size(2)
            writer.add_vision_is_deepstack_layers([True])
        else:
            writer.add_vision_projector_scale_factor(2)
        if architecture == "llama":
            writer.add_vision_preproc_image_size(8 * _SIDE)
        for name, shape in _shapes(architecture).items():
            writer.add_tensor(name, np.ones(shape, np.float32 if name.endswith(".bias") else np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / NAME).read_bytes()


def add_tower(writer: Any, architecture: str) -> None:
    """Write the same tower into a model's file, as Ollama's converter has it."""
    sizes = {"block_count": 1, "embedding_length": _WIDTH, "patch_size": _SIDE, "attention.head_count": 2}
    if architecture == "qwen3vl":
        sizes |= {"spatial_merge_size": 2, "shortest_edge": 64, "longest_edge": 1024}
        writer.add_array(f"{architecture}.vision.deepstack_visual_indexes", [0])
    else:
        sizes |= {"image_size": 2 * _SIDE, "feed_forward_length": 32}
        writer.add_uint32(f"{architecture}.mm.tokens_per_image", 1)
        writer.add_float32(f"{architecture}.vision.attention.layer_norm_epsilon", 1e-6)
    for key, size in sizes.items():
        writer.add_uint32(f"{architecture}.vision.{key}", size)
    for name, (rows, *columns) in _shapes(architecture).items():
        names, shape = [name], (rows, *columns)
        if "attn_qkv" in name:
            names, shape = [name.replace("qkv", part) for part in "qkv"], (rows // 3, *columns)
        elif name.endswith(".1") or (architecture == "qwen3vl" and name == "v.patch_embd.weight"):
            # Both frames, of which the second is left out below.
            names, shape = ["v.patch_embed.weight"] * (not name.endswith(".1")), (3 * _WIDTH, 2, _SIDE, _SIDE)
        for each in names:
            stored = each.replace("v.deepstack.", "v.deepstack_merger.")
            writer.add_tensor(stored, np.ones(shape, np.float32 if name.endswith(".bias") else np.float16))


def read_mmproj(folder: Path) -> None:
    """Read the tower of a model, once asked for and once found beside it."""
    for asked_for in (folder / NAME, None):
        with unpacked(folder / MODEL, asked_for) as unpacked_folder:
            checkpoint = open_checkpoint(unpacked_folder)
            vision = open_vision(checkpoint, Quantization("int8"))
            for name in checkpoint.tensors.by_name if vision else ():
                checkpoint.tensors.read(name)


def read_own_tower(folder: Path) -> None:
    """Read the tower inside of a model's file."""
    with unpacked(folder / MODEL) as unpacked_folder:
        checkpoint = open_checkpoint(unpacked_folder)
        vision = open_vision(checkpoint, Quantization("int8"))
        for name in checkpoint.tensors.by_name if vision else ():
            checkpoint.tensors.read(name)
