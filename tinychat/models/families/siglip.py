"""The vision towers of SigLIP: BERT's layers, normed before attention and MLP, over the patches of an image.

A convolution whose steps are as large as its kernel makes a row of each patch: a linear of the patch's numbers. The
patches of a tile have a learned position each (Zhai et al., 2023, https://arxiv.org/abs/2303.15343;
github.com/huggingface/transformers, models/siglip, idefics3 and smolvlm). In the last two, positions follow from
coordinates that are rounded; for the grids of published towers, 26, 27 and 32, these are the patches in their order.

SigLIP 2 takes tiles of any grid of patches, and fits the learned positions of a square one to each (Tschannen et al.,
2025, https://arxiv.org/abs/2502.14786; models/siglip2 there): see `images.positions`.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isqrt

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears, layer_norms
from tinychat.models.families.bert import positions_alone, with_positions
from tinychat.models.family import Family
from tinychat.models.image_preparation import MOST_PATCHES
from tinychat.models.tensors import GRID_POSITIONS, Linear, Table

LAYER = "encoder.layers.{}."
ATTENTION = f"{LAYER}self_attn."
PATCHES = "embeddings.patch_embedding"
POSITIONS = "embeddings.position_embedding"
TENSORS = TensorNames(
    embed=PATCHES,
    qkv=(f"{ATTENTION}q_proj", f"{ATTENTION}k_proj", f"{ATTENTION}v_proj"),
    o=f"{ATTENTION}out_proj",
    gate_up=(f"{LAYER}mlp.fc1",),
    down=f"{LAYER}mlp.fc2",
    norms=layer_norms(f"{LAYER}layer_norm1", f"{LAYER}layer_norm2", "post_layernorm"),
    norm_bias=True,
)
# The first two are ours: no tower has ids, and positions are those of patches.
DEFAULTS = {
    "vocab_size": 1,
    "max_position_embeddings": 1,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "num_channels": 3,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a tower."""
    patch_size = values.integer("patch_size", 1, 1 << 10)
    patches = (values.integer("image_size", patch_size, 1 << 14) // patch_size) ** 2
    if patches > MOST_PATCHES:
        raise values.error("image_size", f"one of {MOST_PATCHES} patches of {patch_size} by {patch_size} at most")
    return replace(_of_patches(values, config), max_position_embeddings=patches)


def read_any_grid(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a tower for tiles of any grid, with up to `max_position_embeddings` patches."""
    values.integer("max_position_embeddings", 1, MOST_PATCHES)
    learned = values.integer("num_patches", 1, MOST_PATCHES)
    if isqrt(learned) ** 2 != learned:
        raise values.error("num_patches", "that of a square grid")
    return replace(_of_patches(values, config), learned_positions=False, position_grid=isqrt(learned))


def _of_patches(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    return replace(with_positions(config), stream_norms=False, patch_columns=patch_columns(values))


def patch_columns(values: ConfigValues) -> int:
    """Read how many numbers a patch has."""
    return values.integer("num_channels", 1, 16) * values.integer("patch_size", 1, 1 << 10) ** 2


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears, of which the embedding is one of patches; all have biases, or none."""
    embedding, *others = decoder_linears(config, names)
    bias, rows = config.qkv_bias, (config.hidden_size,)
    return [replace(embedding, rows=rows, columns=config.patch_columns, bias=bias), *others]


def grid_positions(source: str) -> Callable[[ModelConfig], list[Table]]:
    """Return a function that lists the vectors of the positions in a square grid; source : their tensor."""
    return lambda config: [Table(GRID_POSITIONS, source, config.position_grid**2, config.hidden_size)]


SIGLIP_TOWER = Family(
    "SiglipVisionTower",
    "siglip_vision_model",
    "SigLIP",
    "the vision tower of SmolVLM, Idefics3 and Gemma 3",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    tables=positions_alone(POSITIONS),
    names={"rms_norm_eps": "layer_norm_eps"},
    is_tower=True,
)
SIGLIP2_TOWER = Family(
    "Siglip2VisionTower",
    "siglip2_vision_model",
    "SigLIP 2",
    "the vision tower of LFM2-VL",
    DEFAULTS,
    read_any_grid,
    TENSORS,
    linears,
    tables=grid_positions(POSITIONS),
    names={"rms_norm_eps": "layer_norm_eps"},
    is_tower=True,
)
