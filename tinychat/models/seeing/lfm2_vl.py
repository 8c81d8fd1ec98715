"""LFM2-VL: an image is tiles of any shape."""

from collections.abc import Mapping
from pathlib import Path

from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import ShapedTiles, read_preparation
from tinychat.models.seeing.parts import (
    MOST_COLUMNS,
    SCALE_FACTOR,
    ConnectorLinear,
    ConnectorParts,
    VisionParts,
    other_preparation,
    read_tower,
    require_known,
    tower_config,
)

_TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_patches": 256,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_PROJECTOR_SIZE = 2560


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model whose tiles have any grid of patches."""
    values = ConfigValues({"downsample_factor": SCALE_FACTOR, **raw}, str(folder / "config.json"))
    tower, patch_size = read_tower(values, _TOWER)
    scale_factor = values.integer("downsample_factor", 1, 1 << 6)
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if columns > MOST_COLUMNS:
        raise values.error("downsample_factor", f"squares of patches with {MOST_COLUMNS} numbers in all")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, ShapedTiles):
        raise other_preparation(values)
    require_known(values, projector_hidden_act=(None, "gelu"), vision_feature_layer=(None, -1))
    inner = values.optional_integer("projector_hidden_size", 1, MOST_COLUMNS) or _PROJECTOR_SIZE
    bias = values.flag("projector_bias", True)
    linears = (
        ConnectorLinear("linear_1", inner, columns, bias),
        ConnectorLinear("linear_2", text_size, inner, bias, activated=True),
    )
    norm = "layer_norm" if values.flag("projector_use_layernorm", True) else ""
    connector = ConnectorParts("multi_modal_projector.", scale_factor, linears, norm)
    config = tower_config("Siglip2VisionTower", "siglip2_vision_model", tower)
    return preparation, config | {"max_position_embeddings": preparation.most_patches}, (connector,)
