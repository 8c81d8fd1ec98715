"""Files with the vision tower of a GGUF file: a sound one, and a function that reads one as a conversion would."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import unpacked
from tinychat.conversion.vision import open_vision
from tinychat.models.layout import Quantization

NAME, MODEL, IMAGE_TOKEN = "mmproj.gguf", "model.gguf", "<image>"
_WIDTH, _SIDE, _TEXT_WIDTH = 16, 4, 32


@cache
def mmproj_file() -> bytes:
    """Return a tower of one layer, for images of 2 by 2 patches of 4 pixels, beside a model of 32 channels."""
    import gguf

    shapes = {f"v.blk.0.{name}": (_WIDTH, _WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_out")}
    shapes |= {"v.blk.0.ffn_up": (32, _WIDTH), "v.blk.0.ffn_down": (_WIDTH, 32)}
    shapes |= {"v.patch_embd": (_WIDTH, 3, _SIDE, _SIDE)}
    vectors = {f"v.blk.0.{name}": (_WIDTH,) for name in ("ln1", "ln2")} | {"v.post_ln": (_WIDTH,)}
    with tempfile.TemporaryDirectory() as folder:
        writer = gguf.GGUFWriter(Path(folder) / NAME, "clip")
        writer.add_clip_projector_type("idefics3")
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
        writer.add_vision_projector_scale_factor(2)
        writer.add_vision_preproc_image_size(8 * _SIDE)
        for name, shape in (shapes | vectors).items():
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
            writer.add_tensor(f"{name}.bias", np.zeros(shape[:1], np.float32))
        writer.add_tensor("v.position_embd.weight", np.zeros((4, _WIDTH), np.float32))
        writer.add_tensor("mm.model.fc.weight", np.zeros((_TEXT_WIDTH, 4 * _WIDTH), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (Path(folder) / NAME).read_bytes()


def read_mmproj(folder: Path) -> None:
    """Read the tower of a model, once asked for and once found beside it."""
    for asked_for in (folder / NAME, None):
        with unpacked(folder / MODEL, asked_for) as unpacked_folder:
            checkpoint = open_checkpoint(unpacked_folder)
            vision = open_vision(checkpoint, Quantization("int8"))
            for name in checkpoint.tensors.by_name if vision else ():
                checkpoint.tensors.read(name)
