"""Rows of images that also enter the outputs of the first layers: DeepStack (Meng et al., 2024).

A row then has a part for each of these layers, behind the one that replaces the embedding
(https://arxiv.org/abs/2406.04334).
"""

from collections.abc import Mapping

from tinychat.models.config_values import ConfigValues

TOWER_LAYERS = [8, 16, 24]
"""Layers of the vision tower that the parts are made of, where a file does not say."""
_WRAPPERS = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")


def read_deepstack_layers(raw: Mapping[str, object], source: str, wrapper: str | None, layers: int) -> int:
    """Read to how many of the text model's layers parts of a row are added, by the whole `config.json`."""
    if wrapper not in _WRAPPERS:
        return 0
    section, key = ConfigValues(raw, source).optional_section("vision_config"), "deepstack_visual_indexes"
    found = None if section is None else section.get(key)
    if section is None or found is None:
        return len(TOWER_LAYERS)
    if not isinstance(found, list) or len(found) > layers:
        raise section.error(key, f"a list of up to {layers} layers")
    return len(found)
