"""The vision tower of Gemma 4: its layers of text over the patches of an image, which see each other.

The first half of a head's channels turns by the column of a patch, the second half by its row. A patch has a learned
vector by its column and one by its row, which are added. Behind the last layer there is no norm. The towers of E2B and
E4B have bounds of the inputs and outputs of linears (github.com/huggingface/transformers, models/gemma4).
"""

from dataclasses import replace

import numpy as np

from tinychat.models.clipped_linears import WITHIN, clipped_bounds, clipped_linears
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears, decoder_norms
from tinychat.models.family import Family
from tinychat.models.image_preparation import MOST_PATCHES
from tinychat.models.tensors import GRID_POSITIONS, Linear, Norm, Order, Table, joined, rows_of
from tinychat.models.varied_layers import VariedLayers

LAYER = "encoder.layers.{}."
ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."
PATCHES, POSITIONS = "patch_embedder.input_proj", "patch_embedder.position_embedding_table"
# The quarters of a head's channels in the order of rows and columns: halves that turn together stand apart there.
_QUARTERS = (2, 0, 3, 1)
DEFAULTS = {
    "vocab_size": 1,
    "max_position_embeddings": 1,
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a tower for tiles of any grid, with up to `max_position_embeddings` patches."""
    values.integer("max_position_embeddings", 1, MOST_PATCHES)
    if config.head_dim % 4:
        raise values.error("head_dim", "a multiple of 4")
    layers = tuple(range(config.num_hidden_layers))
    return replace(
        config,
        bidirectional=True,
        rotary_dims=config.rotary_dims,
        qk_norm="head",
        attention_scale=1.0,
        position_axes=values.integer("position_embedding_size", 1, MOST_PATCHES),
        patch_columns=3 * values.integer("patch_size", 1, 1 << 10) ** 2,
        clipped_linears=values.flag("use_clipped_linears", False),
        varied=VariedLayers((), config.head_dim, config.num_key_value_heads, False, layers, ()),
    )


def rows(config: ModelConfig) -> Order:
    """Order of queries, keys and values."""
    quarter = np.arange(config.head_dim).reshape(4, -1)[list(_QUARTERS)].reshape(-1)
    heads = config.num_attention_heads, config.num_key_value_heads
    queries, keys = ((np.arange(count)[:, None] * config.head_dim + quarter).reshape(-1) for count in heads)
    return queries, keys, None


def _gains(source: str, head_dim: int) -> str:
    """Return the name of a norm's gains in that order."""
    parts = rows_of(source, *[head_dim // 4] * 4)
    return joined(*(parts[quarter] for quarter in _QUARTERS))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears, of which the embedding is one of patches."""
    embedding, *others = decoder_linears(config, names)
    embedding = replace(embedding, rows=(config.hidden_size,), columns=config.patch_columns)
    return [embedding, *(clipped_linears(config, names) if config.clipped_linears else others)]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the bounds of linears."""
    found = [
        replace(norm, source=_gains(norm.source, norm.size)) if norm.name in ("q_norm", "k_norm") else norm
        for norm in decoder_norms(config, names)
    ]
    found.append(Norm("layer_scale", "", 1, config.num_hidden_layers, padded=False))
    return found + (clipped_bounds(clipped_linears(config, names)) if config.clipped_linears else [])


def positions(config: ModelConfig) -> list[Table]:
    """List the vectors of columns, and behind them those of rows."""
    return [Table(GRID_POSITIONS, POSITIONS, 2 * config.position_axes, config.hidden_size)]


GEMMA4_VISION_TOWER = Family(
    "Gemma4VisionTower",
    "gemma4_vision",
    "Gemma 4",
    "its vision tower",
    DEFAULTS,
    read,
    TensorNames(
        embed=PATCHES,
        qkv=tuple(f"{ATTENTION}{part}_proj{WITHIN}" for part in "qkv"),
        o=f"{ATTENTION}o_proj{WITHIN}",
        gate_up=(f"{MLP}gate_proj{WITHIN}", f"{MLP}up_proj{WITHIN}"),
        down=f"{MLP}down_proj{WITHIN}",
        norms={
            "input_layernorm": f"{LAYER}input_layernorm",
            "q_norm": f"{ATTENTION}q_norm",
            "k_norm": f"{ATTENTION}k_norm",
            "post_self_attn_layernorm": f"{LAYER}post_attention_layernorm",
            "post_attention_layernorm": f"{LAYER}pre_feedforward_layernorm",
            "post_mlp_layernorm": f"{LAYER}post_feedforward_layernorm",
        },
        qkv_order=rows,
    ),
    linears,
    norms,
    positions,
    is_tower=True,
)
