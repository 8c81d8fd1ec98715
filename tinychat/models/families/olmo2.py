"""OLMo 2 and 3, and EXAONE 4: Llama's layers, normed after attention and MLP instead of before.

Their outputs are normed, and added to the residual stream; their inputs are not. OLMo norms queries and keys over all
heads, EXAONE each head. OLMo 3 and the larger EXAONE have a window in three of four layers: OLMo 3 stretches positions
in the others only, EXAONE does not rotate there at all (OLMo, 2024, https://arxiv.org/abs/2501.00656; LG AI Research,
2025, https://arxiv.org/abs/2507.11407; github.com/huggingface/transformers, models/olmo2, olmo3 and exaone4).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows, rotated_in_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import HEAD_NORMS, LAYER, TensorNames
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_sliding_theta, split_rope

TENSORS = TensorNames(
    norms={
        "post_self_attn_layernorm": f"{LAYER}post_attention_layernorm",
        "post_mlp_layernorm": f"{LAYER}post_feedforward_layernorm",
        "norm": "model.norm",
        **HEAD_NORMS,
    }
)


def read_olmo2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file."""
    return replace(with_attention_bias(values, config), qk_norm="width")


def read_olmo3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window stretch positions; the others rotate with a base of their own."""
    config = replace(read_olmo2(values, config), sliding_windows=_windows(values, config.num_hidden_layers))
    return rotated_by_kind(values, config)


def rotated_by_kind(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read the base of layers with a window, which have no scaling: see `split_rope`."""
    theta = read_sliding_theta(values, config.rope_theta)
    separate = theta != config.rope_theta or config.rope_scaling is not None
    return replace(config, sliding_rope_theta=theta if separate else None)


def read_exaone4(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window do not rotate, where others have one."""
    config = replace(config, qk_norm="head")
    if values.get("sliding_window") is None:
        return config
    windows = _windows(values, config.num_hidden_layers)
    if not any(windows):
        raise values.error("layer_types", "some layers with a window, since sliding_window is given")
    return rotated_in_windows(config, windows)


def _windows(values: ConfigValues, layers: int) -> tuple[int, ...]:
    """Read the window of each layer: all but every fourth, unless the file names them."""
    has_interval = type(values.get("sliding_window_pattern")) is int
    interval = values.integer("sliding_window_pattern", 1, 4096) if has_interval else 4
    return read_windows(values, layers, lambda layer: (layer + 1) % interval != 0)


_OLMO2 = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_OLMO3 = {**_OLMO2, "sliding_window": 4096, "rope_theta": 5e5}
_EXAONE4 = {**_OLMO2, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}

OLMO2 = Family(
    "Olmo2ForCausalLM", "olmo2", "OLMo 2", "norms after, q/k norm over all heads", _OLMO2, read_olmo2, TENSORS
)
OLMO3 = Family(
    "Olmo3ForCausalLM",
    "olmo3",
    "OLMo 3",
    "the same, sliding window by layer, yarn in the others",
    _OLMO3,
    read_olmo3,
    TENSORS,
    prepared=split_rope,
)
EXAONE4 = Family(
    "Exaone4ForCausalLM",
    "exaone4",
    "EXAONE 4",
    "norms after, q/k norm, sliding window by layer, no rotation in the others",
    _EXAONE4,
    read_exaone4,
    TENSORS,
)
