"""OLMo 2 and 3, and EXAONE 4: Llama's layers, normed after attention and MLP instead of before.

What they give is normed, and added to the residual stream; what they take is not. OLMo norms queries and keys over all
heads, EXAONE each head. OLMo 3 and the larger EXAONE have a window in three of four layers: OLMo 3 stretches positions
in the others only, EXAONE does not rotate there at all (OLMo, 2024, https://arxiv.org/abs/2501.00656; LG AI Research,
2025, https://arxiv.org/abs/2507.11407; github.com/huggingface/transformers, models/olmo2, olmo3 and exaone4).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, windows_of_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS, read_sliding_theta, split_rope
from tinychat.models.tensors import Norm


def read_olmo2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are as the file says."""
    bias = values.flag("attention_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias, qk_norm="width")


def read_olmo3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every fourth layer have the window, where the file does not say which."""
    windows = _windows(values, config.num_hidden_layers, 4)
    theta = read_sliding_theta(values, config.rope_theta)
    separate = theta != config.rope_theta or config.rope_scaling is not None
    return replace(read_olmo2(values, config), sliding_windows=windows, sliding_rope_theta=theta if separate else None)


def read_exaone4(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers without a window do not rotate, where others have one."""
    config = replace(config, qk_norm="head")
    if values.get("sliding_window") is None:
        return config
    windows = _windows(values, config.num_hidden_layers, 4)
    rotary_dims = tuple(config.rotary_dim if window else 0 for window in windows)
    if not any(rotary_dims):
        raise values.error("layer_types", "some layers with a window, since sliding_window is given")
    return replace(config, sliding_windows=windows, rotary_dims=rotary_dims)


def _windows(values: ConfigValues, layers: int, interval: int) -> tuple[int, ...]:
    window = values.optional_integer("sliding_window", 1, MAX_POSITIONS)
    if values.get("layer_types") is not None:
        return windows_of_types(values, window, layers)
    if type(values.get("sliding_window_pattern")) is int:
        interval = values.integer("sliding_window_pattern", 1, 4096)
    return tuple(0 if (layer + 1) % interval == 0 else window or 0 for layer in range(layers))


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms: of what attention gives, of what the MLP gives, of queries and keys, and the last one."""
    D, d, L = config.hidden_size, config.head_dim, config.num_hidden_layers
    queries, keys = (config.num_attention_heads * d, config.num_key_value_heads * d)
    q_size, k_size = (queries, keys) if config.qk_norm == "width" else (d, d)
    return [
        Norm("post_self_attn_layernorm", f"{llama.LAYER}post_attention_layernorm", D, L),
        Norm("post_mlp_layernorm", f"{llama.LAYER}post_feedforward_layernorm", D, L),
        Norm("norm", "model.norm", D, None),
        Norm("q_norm", f"{llama.ATTENTION}q_norm", q_size, L, padded=False),
        Norm("k_norm", f"{llama.ATTENTION}k_norm", k_size, L, padded=False),
    ]


_OLMO2 = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_OLMO3 = {**_OLMO2, "sliding_window": 4096, "rope_theta": 5e5}
_EXAONE4 = {**_OLMO2, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}

FAMILIES = (
    Family(
        "Olmo2ForCausalLM",
        "olmo2",
        "OLMo 2",
        "norms after, q/k norm over all heads",
        _OLMO2,
        read_olmo2,
        llama.linears,
        norms,
    ),
    Family(
        "Olmo3ForCausalLM",
        "olmo3",
        "OLMo 3",
        "the same, sliding window by layer, yarn in the others",
        _OLMO3,
        read_olmo3,
        llama.linears,
        norms,
        prepared=split_rope,
    ),
    Family(
        "Exaone4ForCausalLM",
        "exaone4",
        "EXAONE 4",
        "norms after, q/k norm, sliding window by layer, no rotation in the others",
        _EXAONE4,
        read_exaone4,
        llama.linears,
        norms,
    ),
)
