"""How a model sees images: its vision tower, and the connector that makes rows of the text model of what that gives.

A model folder has the tower in the subfolder ``vision``, a model folder of its own, and beside its weights those of the
connector, in ``connector.safetensors``. Models that were converted without it stay text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinychat.json_file import read_json_object
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.image_preparation import PREPARATION_FILES, SquareTiles, read_preparation
from tinychat.models.multimodal import image_token_of, text_part, wrapper_of

VISION_FOLDER = "vision"
CONNECTOR, CONNECTOR_WEIGHT = "connector.safetensors", "proj.weight"
# Columns of a connector: with these, its sums are exact (`images.connector`).
MOST_COLUMNS = 1 << 16
# What transformers takes for keys that a tower's section lacks.
_SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_SCALE_FACTOR = 2


@dataclass(frozen=True)
class Vision:
    """How a model sees images.

    A tile is a square of `grid` by `grid` patches. The connector joins squares of `scale_factor` by `scale_factor`
    patches, and makes a row of the text model, of `text_size` numbers, of each.
    """

    wrapper: str  # the model's architecture
    image_token_id: int
    preparation: SquareTiles
    tower: Mapping[str, object]  # the tower's `config.json`
    hidden_size: int  # of the tower
    patch_size: int  # pixels
    grid: int
    scale_factor: int
    text_size: int

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return self.grid**2

    @property
    def patch_columns(self) -> int:
        """Numbers of a patch: of each color one of each pixel."""
        return 3 * self.patch_size**2

    @property
    def tokens(self) -> int:
        """Rows, and image tokens, of a tile."""
        return (self.grid // self.scale_factor) ** 2

    @property
    def connector_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the connector's tensors by their names in a model folder."""
        return {CONNECTOR_WEIGHT: (self.text_size, self.hidden_size * self.scale_factor**2)}

    @property
    def connector_bytes(self) -> int:
        """Size of the connector's weights, float32."""
        return 4 * sum(math.prod(shape) for shape in self.connector_shapes.values())


def sees(folder: Path) -> bool:
    """Return whether a model folder has a vision tower."""
    return (folder / VISION_FOLDER / "config.json").is_file()


def read_vision(folder: Path) -> Vision | None:
    """Return how the model of a checkpoint or model folder sees images; None where text is all that it reads.

    Raises CheckpointError or UnsupportedModelError for values of its files that cannot be.
    """
    path = folder / "config.json"
    raw = read_json_object(path)
    wrapper = wrapper_of(raw)
    is_prepared = any((folder / name).is_file() for name in PREPARATION_FILES)
    if wrapper is None or image_token_of(raw) is None or not is_prepared:
        return None
    values = ConfigValues({"scale_factor": _SCALE_FACTOR, **raw}, str(path))
    section = values.optional_section("vision_config") or ConfigValues({}, str(path))
    found = {key: default if section.get(key) is None else section.get(key) for key, default in _SIGLIP.items()}
    tower = ConfigValues(found, f"{path}: vision_config")
    patch_size = tower.integer("patch_size", 1, 1 << 10)
    tower.integer("num_channels", 3, 3)
    hidden_size, grid = tower.integer("hidden_size", 1, 1 << 20), tower.integer("image_size", patch_size, 1 << 14)
    grid //= patch_size
    scale_factor = values.integer("scale_factor", 1, grid)
    if grid % scale_factor or hidden_size * scale_factor**2 > MOST_COLUMNS:
        limit = f"{MOST_COLUMNS} numbers in all"
        raise values.error("scale_factor", f"a divisor of the {grid} patches of a row, of which squares have {limit}")
    preparation = read_preparation(folder, patch_size, scale_factor)
    if not isinstance(preparation, SquareTiles) or preparation.tile_size // patch_size != grid:
        raise tower.error("image_size", "that of the tiles that images are prepared as")
    return Vision(
        wrapper,
        values.integer("image_token_id", 0, MAX_VOCAB_SIZE - 1),
        preparation,
        {"architectures": ["SiglipVisionTower"], "model_type": "siglip_vision_model", **found},
        hidden_size,
        patch_size,
        grid,
        scale_factor,
        ConfigValues(text_part(raw), str(path)).integer("hidden_size", 1, 1 << 20),
    )
