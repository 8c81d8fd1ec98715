"""SmolVLM and Idefics3: an image is squares of one size, whose tokens stand for squares of patches."""

from collections.abc import Mapping
from pathlib import Path

from tinychat.models.config_values import ConfigValues
from tinychat.models.image_preparation import SquareTiles, read_preparation
from tinychat.models.seeing.parts import (
    MOST_COLUMNS,
    SCALE_FACTOR,
    SIGLIP,
    ConnectorLinear,
    ConnectorParts,
    VisionParts,
    read_tower,
    tower_config,
)


def read(folder: Path, raw: Mapping[str, object], text_size: int) -> VisionParts:
    """Read the parts of a model whose tiles are all of one size, which is that of the tower's grid of positions."""
    values = ConfigValues({"scale_factor": SCALE_FACTOR, **raw}, str(folder / "config.json"))
    tower, patch_size = read_tower(values, SIGLIP)
    grid = tower.integer("image_size", patch_size, 1 << 14) // patch_size
    scale_factor = values.integer("scale_factor", 1, grid)
    columns = tower.integer("hidden_size", 1, 1 << 20) * scale_factor**2
    if grid % scale_factor or columns > MOST_COLUMNS:
        limit = f"{MOST_COLUMNS} numbers in all"
        raise values.error("scale_factor", f"a divisor of the {grid} patches of a row, of which squares have {limit}")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, SquareTiles) or preparation.tile_size // patch_size != grid:
        raise tower.error("image_size", "that of the tiles that images are prepared as")
    linear = ConnectorLinear("proj", text_size, columns)
    connector = ConnectorParts("connector.modality_projection.", scale_factor, (linear,))
    return preparation, tower_config("SiglipVisionTower", "siglip_vision_model", tower), (connector,)
