"""Apertus: Llama's layers with q/k norms, and an MLP without gates, whose activation has two numbers in each layer.

(Apertus Team, 2025, https://arxiv.org/abs/2509.14233; github.com/huggingface/transformers, models/apertus.)
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, MLP, TensorNames, decoder_norms
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

# Each is added to the softplus of the checkpoint's number.
NUMBERS = {"xielu_positive": ("alpha_p", 0.0), "xielu_negative": ("alpha_n", 0.5)}
TENSORS = TensorNames(
    gate_up=(f"{MLP}up_proj",),
    norms={
        **LLAMA_NORMS,
        "input_layernorm": f"{LAYER}attention_layernorm",
        "post_attention_layernorm": f"{LAYER}feedforward_layernorm",
    },
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file without its activation, if it is the only one that is read."""
    return {key: value for key, value in raw.items() if (key, value) != ("hidden_act", "xielu")}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases of attention are those of the file."""
    values.require(hidden_act=None)
    return replace(read_llama(values, config), gated=False, mlp_bias=False, qk_norm="head", hidden_act="xielu")


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the numbers of activations."""
    L = config.num_hidden_layers
    numbers = [
        Norm(name, f"{MLP}act_fn.{source}", 1, L, padded=False, offset=offset, softplus=True)
        for name, (source, offset) in NUMBERS.items()
    ]
    return [*decoder_norms(config, names), *numbers]


APERTUS = Family(
    "ApertusForCausalLM",
    "apertus",
    "Apertus 8B, 70B",
    "q/k norm, MLP of xIELU without gates, llama3",
    {
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 65536,
        "rope_theta": 12e6,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
    read,
    TENSORS,
    norms=norms,
    prepared=prepared,
)
