"""The vision tower of Pixtral: Llama's layers over the patches of an image, which attend to each other.

The rows that the linear of patches gives are normed. Half of the pairs of a head's channels turn by the row of a patch,
half by its column: of the head's frequencies, rows have the first, third and so on, columns the others. There is no
norm behind the last layer, and there are no biases (Mistral AI, 2024, https://arxiv.org/abs/2410.07073;
github.com/huggingface/transformers, models/pixtral).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.families import siglip
from tinychat.models.family import Family
from tinychat.models.image_preparation import MOST_PATCHES

LAYER = "transformer.layers.{}."
ATTENTION, MLP = f"{LAYER}attention.", f"{LAYER}feed_forward."


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a tower for tiles of any grid, with up to `max_position_embeddings` patches."""
    values.integer("max_position_embeddings", 1, MOST_PATCHES)
    if config.head_dim % 4:
        raise values.error("hidden_size", f"a multiple of {4 * config.num_attention_heads}, four for each head")
    return replace(config, bidirectional=True, alternating_turns=True, patch_columns=siglip.patch_columns(values))


PIXTRAL_VISION_TOWER = Family(
    "PixtralVisionTower",
    "pixtral",
    "Pixtral, Mistral Small 3.1 and 3.2, Ministral 3",
    "their vision tower",
    siglip.DEFAULTS | {"hidden_act": "gelu", "rms_norm_eps": 1e-5},
    read,
    TensorNames(
        embed="patch_conv",
        qkv=(f"{ATTENTION}q_proj", f"{ATTENTION}k_proj", f"{ATTENTION}v_proj"),
        o=f"{ATTENTION}o_proj",
        gate_up=(f"{MLP}gate_proj", f"{MLP}up_proj"),
        down=f"{MLP}down_proj",
        norms={
            "embed_norm": "ln_pre",
            "input_layernorm": f"{LAYER}attention_norm",
            "post_attention_layernorm": f"{LAYER}ffn_norm",
        },
    ),
    siglip.linears,
    is_tower=True,
)
