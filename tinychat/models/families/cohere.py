"""Command R, R7B, Aya and North Micro: attention and a gated MLP beside each other, behind one layer norm without bias.

Neighbouring channels are rotated together; rows of queries and keys are reordered for that. Logits are times a number.
Command R7B has a window in three of four layers, and rotates in those alone. So does North Micro Vision, but in halves
of each head (Cohere, 2024 and 2026, https://arxiv.org/abs/2412.04261; github.com/huggingface/transformers,
models/cohere, cohere2 and cohere_compass).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows, rotated_in_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, TensorNames, layer_norms, neighbours_rows
from tinychat.models.families import granite
from tinychat.models.family import Family
from tinychat.models.rope_scaling import FULL, SLIDING, read_sliding_theta

NORM = f"{LAYER}input_layernorm"
TENSORS = TensorNames(qkv_order=neighbours_rows, norms=layer_norms(NORM, NORM, "model.norm"))
NAMES = {"rms_norm_eps": "layer_norm_eps"}
ROTATED = "rotated_layer_types"  # the key of `ropes_of_compass`


def read_cohere(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file; norms of queries and keys, of the largest model, are refused."""
    values.require(use_qk_norm=False)
    return replace(
        with_attention_bias(values, config),
        layer_norm=True,
        parallel=True,
        logits_multiplier=values.number("logit_scale", 1 / granite.MOST, granite.MOST),
    )


def read_cohere2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window do not rotate."""
    interval = values.optional_integer("sliding_window_pattern", 1, 4096) or 4
    windows = read_windows(values, config.num_hidden_layers, lambda layer: (layer + 1) % interval != 0)
    if not any(windows):
        raise values.error("sliding_window", "a window, and layers that have it")
    return rotated_in_windows(read_cohere(values, config), windows)


def read_compass(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers of a kind without a rotary embedding do not rotate; none has a window unless the file names it."""
    windows = read_windows(values, config.num_hidden_layers, lambda layer: False)
    rotated = values.get(ROTATED)
    assert isinstance(rotated, list)
    theta = read_sliding_theta(values, config.rope_theta)
    return replace(
        read_cohere(values, config),
        sliding_windows=windows,
        rotary_dims=tuple(config.rotary_dim * ((SLIDING if window else FULL) in rotated) for window in windows),
        sliding_rope_theta=None if theta == config.rope_theta else theta,
    )


def ropes_of_compass(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return a file's values with the kinds of layers that rotate, and the rotary embedding of each under its key."""
    ropes, scale = raw.get("rope_parameters"), raw.get("logit_scale")
    found = {**raw, "logit_scale": 1.0 if scale is None else scale, ROTATED: [FULL, SLIDING]}
    if not isinstance(ropes, Mapping) or not ropes.keys() & {FULL, SLIDING}:
        return found
    full, sliding = ropes.get(FULL), ropes.get(SLIDING)
    found[ROTATED] = [kind for kind, rope in ((FULL, full), (SLIDING, sliding)) if rope is not None]
    one, other = (sliding, None) if full is None else (full, sliding)
    return found | {"rope_parameters": one, "sliding_rope_parameters": other}


DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
}
COHERE = Family(
    "CohereForCausalLM",
    "cohere",
    "Command R, Aya 23, Aya Expanse",
    "layer norms, MLP beside attention, rotation by neighbours, multiplier of logits",
    {**DEFAULTS, "rope_theta": 5e5},
    read_cohere,
    TENSORS,
    names=NAMES,
)
COHERE2 = Family(
    "Cohere2ForCausalLM",
    "cohere2",
    "Command R7B, Command A",
    "the same, sliding window by layer, no rotation in the others",
    {**DEFAULTS, "sliding_window": 4096},
    read_cohere2,
    TENSORS,
    names=NAMES,
)
COHERE_COMPASS = Family(
    "CohereCompassForCausalLM",
    "cohere_compass_text",
    "North Micro Vision (text)",
    "layer norms, MLP beside attention, multiplier of logits, sliding window and rotation by layer",
    {**DEFAULTS, "logit_scale": 1.0, "sliding_window": 4096},
    read_compass,
    replace(TENSORS, qkv_order=TensorNames.qkv_order),
    names=NAMES,
    prepared=ropes_of_compass,
)
