"""Qwen3-VL and Qwen3.5: an image is one tile of any shape, in a tower that rotates (`families.qwen_vision`)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tinychat.models.config_values import ConfigValues
from tinychat.models.deepstack import TOWER_LAYERS
from tinychat.models.image_preparation import WholeImage, read_preparation
from tinychat.models.rope_scaling import DEFAULT_ROPE_THETA
from tinychat.models.seeing.parts import (
    MOST_COLUMNS,
    MOST_MERGED,
    SCALE_FACTOR,
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
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "depth": 27,
    "num_heads": 16,
    "in_channels": 3,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
}
_OUT_SIZE = 3584


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model that sees an image as one tile, whose tower rotates."""
    values = ConfigValues(raw, str(folder / "config.json"))
    tower, patch_size = read_tower(values, _TOWER, "in_channels")
    section = vision_section(values)
    scale_factor = section.optional_integer("spatial_merge_size", 1, MOST_MERGED) or SCALE_FACTOR
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if columns > MOST_COLUMNS:
        raise tower.error("hidden_size", f"squares of {scale_factor**2} patches with {MOST_COLUMNS} numbers in all")
    if (section.optional_integer("out_hidden_size", 1, 1 << 20) or _OUT_SIZE) != text_size:
        raise section.error("out_hidden_size", f"the {text_size} numbers of a row of the text model")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, WholeImage):
        raise other_preparation(values)
    linears = (
        ConnectorLinear("linear_fc1", columns, columns, True),
        ConnectorLinear("linear_fc2", text_size, columns, True, activated=True),
    )
    config = tower_config("QwenVisionTower", "qwen3_vl_vision", tower)
    theta = read_theta(section) or DEFAULT_ROPE_THETA
    config |= {"max_position_embeddings": preparation.most_patches, "rope_theta": theta}
    return preparation, config, (ConnectorParts("visual.merger.", scale_factor, linears),)


def read_deepstack(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the same parts and those of connectors behind some layers of the tower."""
    preparation, config, (connector,) = read(folder, raw, text_size)
    values = ConfigValues(raw, str(folder / "config.json"))
    section = vision_section(values)
    key, depth = "deepstack_visual_indexes", ConfigValues(config, values.source).integer("depth", 1, 4096)
    layers = TOWER_LAYERS if section.get(key) is None else section.get(key)
    is_list = isinstance(layers, list) and all(type(layer) is int and 0 <= layer < depth for layer in layers)
    if not isinstance(layers, list) or not is_list or len(set(layers)) < len(layers):
        raise section.error(key, f"a list of layers from 0 to {depth - 1}")
    others = [
        replace(connector, stem=f"visual.deepstack_merger_list.{number}.", norm="norm", norm_eps=1e-6, layer=layer + 1)
        for number, layer in enumerate(layers)
    ]
    # The text model takes their rows in the order of the layers.
    return preparation, config, (connector, *sorted(others, key=lambda each: each.layer))
