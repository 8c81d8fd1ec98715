"""Rotary positions of three axes, of models that see images (M-RoPE): the axis that turns each pair of channels.

A token of text has one position on all axes. One of an image has the time of the whole image, and behind that a row and
a column of its own: see `engine.image_positions` (Qwen2-VL: Wang et al., 2024, https://arxiv.org/abs/2409.12191).
"""

from tinychat.models.config_values import ConfigValues
from tinychat.models.rope_scaling import rope_section

TIME, ROW, COLUMN = range(3)
# Models whose axes take turns, with the pairs of each axis where a file does not say.
_IN_TURNS = {
    "Qwen3VLForConditionalGeneration": (24, 20, 20),
    "Qwen3VLMoeForConditionalGeneration": (24, 20, 20),
    "Qwen3_5ForConditionalGeneration": (11, 11, 10),
    "Qwen3_5MoeForConditionalGeneration": (11, 11, 10),
}


def read_rotary_axes(values: ConfigValues, wrapper: str | None, pairs: int) -> tuple[int, ...]:
    """Read the axis of each pair of channels in the text model of a wrapper; () where positions have one axis."""
    counts: tuple[float, ...] | None = _IN_TURNS.get(wrapper or "")
    if counts is None:
        return ()
    section = rope_section(values)
    if section is not None and section.get("mrope_section") is not None:
        counts = section.numbers("mrope_section", 3, 0, 1 << 20)
    return tuple(pair % 3 if pair < 3 * counts[pair % 3] else TIME for pair in range(pairs))
