"""Gemma 3: an image is one square, whose tokens stand for means of hidden states (`images.connector`)."""

import math
from collections.abc import Mapping
from pathlib import Path

from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import OneTile, read_preparation
from tinychat.models.multimodal import MOST_JOINT_TOKENS, joint_tokens_of
from tinychat.models.seeing.parts import (
    MOST_COLUMNS,
    SIGLIP,
    ConnectorLinear,
    ConnectorParts,
    VisionParts,
    read_tower,
    tower_config,
)

_TOWER = {
    **SIGLIP,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "patch_size": 16,
}
_TOKENS = "mm_tokens_per_image"


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model that sees an image as one tile, whose tokens stand for the means of squares."""
    values = ConfigValues({**raw, _TOKENS: joint_tokens_of(raw)}, str(folder / "config.json"))
    tower, patch_size = read_tower(values, _TOWER)
    image_size, size = tower.integer("image_size", patch_size, 1 << 14), tower.integer("hidden_size", 1, MOST_COLUMNS)
    grid, side = image_size // patch_size, math.isqrt(values.integer(_TOKENS, 1, MOST_JOINT_TOKENS))
    if side**2 != values.get(_TOKENS) or grid % side:
        raise values.error(_TOKENS, f"that of a square which divides the {grid} patches of a row")
    preparation = read_preparation(folder, patch_size, grid // side)
    if not isinstance(preparation, OneTile) or preparation.tile_size != image_size:
        raise tower.error("image_size", "that of the square that images are prepared as")
    linear = ConnectorLinear("mm_input_projection", text_size, size, transposed="mm_input_projection_weight")
    eps = tower.number("layer_norm_eps", 0, 1)
    stem, norm = "multi_modal_projector.", "mm_soft_emb_norm"
    connector = ConnectorParts(stem, grid // side, (linear,), norm, eps, averages=True)
    return preparation, tower_config("SiglipVisionTower", "siglip_vision_model", tower), (connector,)
