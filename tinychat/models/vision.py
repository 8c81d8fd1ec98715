"""How a model sees images: its vision tower, and the connector that makes rows of the text model of what that gives.

A model folder has the tower in the subfolder ``vision``, a model folder of its own, and beside its weights those of the
connector, in ``connector.safetensors``. Models that were converted without it stay text alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tinychat.json_file import read_json_object
from tinychat.models.config_values import MAX_VOCAB_SIZE, ConfigValues
from tinychat.models.image_preparation import PREPARATION_FILES, Preparation
from tinychat.models.multimodal import (
    GEMMA3,
    GEMMA4,
    LFM2_VL,
    LLAVA,
    MISTRAL3,
    image_token_of,
    text_part,
    wrapper_of,
)
from tinychat.models.seeing import gemma3, gemma4, idefics3, lfm2_vl, mistral3, qwen_vl
from tinychat.models.seeing.parts import ConnectorParts, VisionParts

VISION_FOLDER = "vision"
CONNECTOR = "connector.safetensors"


@dataclass(frozen=True)
class Vision:
    """How a model sees images.

    The connector makes a row of the text model, of `text_size` numbers, of each square of patches. Others do so with
    what hidden states are behind some layers of the tower (DeepStack).
    """

    wrapper: str  # the model's architecture
    image_token_id: int
    preparation: Preparation
    tower: Mapping[str, object]  # the tower's `config.json`
    connector: ConnectorParts
    text_size: int
    others: tuple[ConnectorParts, ...] = ()

    @property
    def row_size(self) -> int:
        """Numbers of an image token, of which the text model takes `text_size` at a time."""
        return self.text_size * (1 + len(self.others))

    @property
    def connector_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors of all connectors by their names in a model folder."""
        parts = (self.connector, *self.others)
        return {f"{each.prefix}{name}": shape for each in parts for name, shape in each.shapes.items()}

    @property
    def scale_factor(self) -> int:
        """Patches a side of the squares that one image token stands for."""
        return self.connector.scale_factor

    @property
    def connector_bytes(self) -> int:
        """Size of the connectors' weights, float32."""
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
    wrapper, image_token = wrapper_of(raw), image_token_of(raw)
    is_prepared = any((folder / name).is_file() for name in PREPARATION_FILES)
    if wrapper is None or image_token is None or not is_prepared:
        return None
    given = {**raw, "image_token_id": image_token}
    text_size = ConfigValues(text_part(raw), str(path)).integer("hidden_size", 1, 1 << 20)
    read = _READERS.get(wrapper, idefics3.read)
    preparation, tower, (connector, *others) = read(folder, given, text_size)
    image_token_id = ConfigValues(given, str(path)).integer("image_token_id", 0, MAX_VOCAB_SIZE - 1)
    return Vision(wrapper, image_token_id, preparation, tower, connector, text_size, tuple(others))


_READERS: Mapping[str, Callable[[Path, Mapping[str, object], int], VisionParts]] = {
    GEMMA3: gemma3.read,
    GEMMA4: gemma4.read,
    LFM2_VL: lfm2_vl.read,
    LLAVA: mistral3.read_llava,
    MISTRAL3: mistral3.read,
    "Qwen3VLForConditionalGeneration": qwen_vl.read_deepstack,
    "Qwen3VLMoeForConditionalGeneration": qwen_vl.read_deepstack,
    "Qwen3_5ForConditionalGeneration": qwen_vl.read,
    "Qwen3_5MoeForConditionalGeneration": qwen_vl.read,
}
