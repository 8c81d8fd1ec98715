"""The vision tower of Qwen3-VL and Qwen3.5: that of SigLIP 2 with a rotation in each layer.

Half of the pairs of a head's channels turn by the row of a patch, half by its column. Learned positions are fitted to a
tile between corners that are the same (`images.positions`). The checkpoint's convolution takes two frames of a video; a
still image is both of them, so that its weights are summed (`conversion.vision`). The last norm is that of the
connector, which the checkpoint calls merger (Qwen Team, 2025, https://arxiv.org/abs/2511.21631;
github.com/huggingface/transformers, models/qwen3_vl and qwen3_5).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, layer_norms
from tinychat.models.families import siglip
from tinychat.models.family import Family

LAYER = "blocks.{}."
# Those of its `config.json` by SigLIP's.
NAMES = {
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "num_channels": "in_channels",
    "num_patches": "num_position_embeddings",
    "rms_norm_eps": "layer_norm_eps",
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a tower for tiles of any grid, with up to `max_position_embeddings` patches."""
    if config.head_dim % 4:
        raise values.error("hidden_size", f"a multiple of {4 * config.num_attention_heads}, four for each head")
    return replace(siglip.read_any_grid(values, config), rotary_dims=config.rotary_dims, position_corners=True)


QWEN_VISION_TOWER = Family(
    "QwenVisionTower",
    "qwen3_vl_vision",
    "Qwen3-VL and Qwen3.5",
    "their vision tower",
    siglip.DEFAULTS | {"in_channels": 3},
    read,
    TensorNames(
        embed="patch_embed.proj",
        qkv=(f"{LAYER}attn.qkv",),
        o=f"{LAYER}attn.proj",
        gate_up=(f"{LAYER}mlp.linear_fc1",),
        down=f"{LAYER}mlp.linear_fc2",
        norms=layer_norms(f"{LAYER}norm1", f"{LAYER}norm2", "merger.norm"),
        norm_bias=True,
    ),
    siglip.linears,
    tables=siglip.grid_positions("pos_embed"),
    names=NAMES,
    is_tower=True,
)
