"""ERNIE 4.5 (dense): Llama's layers, of which neighbouring channels are rotated together.

(Baidu, 2025, https://ernie.baidu.com/blog/posts/ernie4.5; github.com/huggingface/transformers, models/ernie4_5.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, neighbours_rows
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none."""
    bias = values.flag("use_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


ERNIE4_5 = Family(
    "Ernie4_5ForCausalLM",
    "ernie4_5",
    "ERNIE 4.5 (dense: 0.3B)",
    "rotation by neighbours",
    DEFAULTS,
    read,
    TensorNames(qkv_order=neighbours_rows),
)
