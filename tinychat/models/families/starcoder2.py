"""StarCoder 2: Llama's attention, between layer norms, with a window and biases; an MLP without gates, of GELU.

(Lozhkov et al., 2024, https://arxiv.org/abs/2402.19173; github.com/huggingface/transformers, models/starcoder2.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, TensorNames
from tinychat.models.families import llama
from tinychat.models.family import Family

DEFAULTS = {
    "norm_epsilon": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "use_bias": True,
    "tie_word_embeddings": True,
}
TENSORS = TensorNames(gate_up=(f"{MLP}c_fc",), down=f"{MLP}c_proj", norm_bias=True)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none; all layers have the window, if there is one."""
    bias = values.flag("use_bias", False)
    config = replace(llama.read_mistral(values, config), layer_norm=True, gated=False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


STARCODER2 = Family(
    "Starcoder2ForCausalLM",
    "starcoder2",
    "StarCoder 2",
    "layer norms, MLP without gates, biases, sliding window",
    DEFAULTS,
    read,
    TENSORS,
    names={"rms_norm_eps": "norm_epsilon"},
)
