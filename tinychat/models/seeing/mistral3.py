"""Mistral 3, and Pixtral inside of LLaVA: an image is one tile of any shape, in a tower that rotates."""

from collections.abc import Mapping
from pathlib import Path

from tinychat.errors import UnsupportedModelError
from tinychat.json_file import one_line
from tinychat.models.architectures import read_values
from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import BoundedImage, read_preparation
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
    require_known,
    tower_config,
    vision_section,
)

_TOWER = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 16,
    "hidden_act": "gelu",
}
_STEM = "multi_modal_projector."


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model that merges squares of patches before its connector's two last linears."""
    given = {"spatial_merge_size": SCALE_FACTOR, "vision_feature_layer": -1, "multimodal_projector_bias": False, **raw}
    values = ConfigValues(given, str(folder / "config.json"))
    side = values.integer("spatial_merge_size", 1, MOST_MERGED)
    preparation, tower = _read_tower(folder, values, side)
    size = tower.integer("hidden_size", 1, MOST_COLUMNS // side**2)
    merging = ConnectorLinear("patch_merger.merging_layer", size, size * side**2)
    eps = read_values(raw, values.source)[1].number("rms_norm_eps", 1e-30, 1)
    linears = (merging, *_linears(values, text_size, size))
    connector = ConnectorParts(_STEM, side, linears, "norm", eps, merges=True)
    return preparation, tower_config("PixtralVisionTower", "pixtral", tower), (connector,)


def read_llava(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model each of whose patches is an image token."""
    given = {"vision_feature_layer": -2, "multimodal_projector_bias": True, **raw}
    values = ConfigValues(given, str(folder / "config.json"))
    # By default it drops a token that this tower does not have.
    require_known(values, vision_feature_select_strategy=("full",))
    preparation, tower = _read_tower(folder, values, 1)
    connector = ConnectorParts(_STEM, 1, _linears(values, text_size, tower.integer("hidden_size", 1, MOST_COLUMNS)))
    return preparation, tower_config("PixtralVisionTower", "pixtral", tower), (connector,)


def _read_tower(folder: Path, values: ConfigValues, side: int) -> tuple[BoundedImage, ConfigValues]:
    """Read how images are prepared, and the tower's `config.json`; side : patches a side of an image token."""
    tower, patch_size = read_tower(values, _TOWER)
    section = vision_section(values)
    require_known(section, model_type=(None, "pixtral"))
    theta = read_theta(section) or section.optional_number("rope_theta", 1.001, 1e30)
    preparation = read_preparation(folder, patch_size, side)
    if not isinstance(preparation, BoundedImage):
        raise other_preparation(values)
    own = {
        "num_hidden_layers": _layers(values, tower.integer("num_hidden_layers", 1, 4096)),
        "max_position_embeddings": preparation.most_patches,
        "rope_theta": theta or DEFAULT_ROPE_THETA,
    }
    return preparation, ConfigValues({**{key: tower.get(key) for key in tower.keys()}, **own}, tower.source)


def _layers(values: ConfigValues, layers: int) -> int:
    """Return how many layers the tower has to run: it has no norm behind the last one, so the others are left out."""
    key = "vision_feature_layer"
    if isinstance(values.get(key), list):
        raise UnsupportedModelError(f"{values.source}: {key} {one_line(repr(values.get(key)), 40)} is not supported")
    found = values.integer(key, -layers, layers)
    if found == 0:
        raise values.error(key, "a layer behind the first")
    return found if found > 0 else layers + 1 + found


def _linears(values: ConfigValues, text_size: int, size: int) -> tuple[ConnectorLinear, ConnectorLinear]:
    require_known(values, projector_hidden_act=(None, "gelu"))
    bias = values.flag("multimodal_projector_bias", True)
    if text_size > MOST_COLUMNS:
        raise values.error("hidden_size", f"{MOST_COLUMNS} at most")
    return (
        ConnectorLinear("linear_1", text_size, size, bias),
        ConnectorLinear("linear_2", text_size, text_size, bias, activated=True),
    )
