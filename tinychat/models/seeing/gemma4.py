"""Gemma 4: an image is one tile of any shape, whose tokens stand for means of hidden states (`images.connector`)."""

import math
from collections.abc import Mapping
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import FilledImage, read_preparation
from tinychat.models.multimodal import joint_tokens_of
from tinychat.models.seeing.parts import (
    MOST_COLUMNS,
    MOST_MERGED,
    ConnectorLinear,
    ConnectorParts,
    VisionParts,
    other_preparation,
    read_theta,
    read_tower,
    tower_config,
    vision_section,
)

_TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "position_embedding_size": 10240,
    "use_clipped_linears": False,
    "standardize": False,
}
_THETA = 100.0


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model whose tower has the layers of its text model."""
    values = ConfigValues(raw, str(folder / "config.json"))
    tower, patch_size = read_tower(values, _TOWER)
    scale_factor = tower.integer("pooling_kernel_size", 1, MOST_MERGED)
    size = tower.integer("hidden_size", 1, MOST_COLUMNS)
    tower.require(attention_bias=False)
    theta = read_theta(vision_section(values))
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, FilledImage):
        raise other_preparation(values)
    joint = joint_tokens_of(raw)
    if isinstance(joint, int) and 0 < joint < preparation.max_tokens:
        key = f"vision_soft_tokens_per_image {joint}"
        raise UnsupportedModelError(f"{values.source}: {key} for images of {preparation.max_tokens} is not supported")
    # An image of one row of tokens is the longest.
    side = preparation.max_tokens * scale_factor
    tower.integer("position_embedding_size", side, 1 << 20)
    config = tower_config("Gemma4VisionTower", "gemma4_vision", tower)
    config |= {"rope_theta": theta or _THETA, "max_position_embeddings": preparation.most_patches}
    config |= {"hidden_act": config.pop("hidden_activation"), "position_embedding_size": side}
    connector = ConnectorParts(
        "",
        scale_factor,
        (ConnectorLinear("embed_vision.embedding_projection", text_size, size),),
        norm_eps=tower.number("rms_norm_eps", 0, 1),
        averages=True,
        times=math.sqrt(size),
        standard="vision_tower.std_" if tower.flag("standardize", False) else "",
    )
    return preparation, config, (connector,)
