"""StarCoder 2: Llama's attention, between layer norms, with a window and biases; an MLP without gates, of GELU.

(Lozhkov et al., 2024, https://arxiv.org/abs/2402.19173; github.com/huggingface/transformers, models/starcoder2.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama, stablelm
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm

DEFAULTS = {
    "norm_epsilon": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "use_bias": True,
    "tie_word_embeddings": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none; all layers have the window, if there is one."""
    bias = values.flag("use_bias", False)
    config = replace(llama.read_mistral(values, config), layer_norm=True, gated=False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    return ungated(config, f"{llama.MLP}c_fc", f"{llama.MLP}c_proj")


def ungated(config: ModelConfig, up: str, down: str) -> list[Linear]:
    """List Llama's linear layers, with an MLP of two, by their names in the checkpoint."""
    F, D, L, bias = config.intermediate_size, config.hidden_size, config.num_hidden_layers, config.mlp_bias
    mlp = {
        "gate_up_proj": Linear("up_proj", (up,), (F,), D, L, bias),
        "down_proj": Linear("down_proj", (down,), (D,), F, L, bias),
    }
    return [mlp.get(linear.name, linear) for linear in llama.linears(config)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    return stablelm.layer_norms(config, llama.norms(config))


FAMILIES = (
    Family(
        "Starcoder2ForCausalLM",
        "starcoder2",
        "StarCoder 2",
        "layer norms, MLP without gates, biases, sliding window",
        DEFAULTS,
        read,
        linears,
        norms,
        names={"rms_norm_eps": "norm_epsilon"},
    ),
)
