"""Nemotron (dense) and Jais 2: Llama's attention between layer norms, and MLPs of squared ReLU without gates.

Nemotron's norms multiply by ``1 + weight``, and it rotates half of each head (NVIDIA, 2024,
https://arxiv.org/abs/2402.16819 and https://arxiv.org/abs/2407.14679; github.com/huggingface/transformers,
models/nemotron and jais2).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, TensorNames
from tinychat.models.families import llama
from tinychat.models.family import Family

TENSORS = TensorNames(gate_up=(f"{MLP}up_proj",), norm_bias=True)
NEMOTRON_TENSORS = replace(TENSORS, norm_offset=1.0)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file."""
    return replace(llama.read_llama(values, config), layer_norm=True, gated=False)


NEMOTRON = Family(
    "NemotronForCausalLM",
    "nemotron",
    "Nemotron 3 8B, Nemotron-4 15B, Minitron 4B, 8B",
    "layer norms, MLP of squared ReLU without gates, half of each head rotated",
    {"norm_eps": 1e-5, "hidden_act": "relu2", "max_position_embeddings": 4096, "partial_rotary_factor": 0.5},
    read,
    NEMOTRON_TENSORS,
    partial_rotary=True,
    names={"rms_norm_eps": "norm_eps"},
)
JAIS2 = Family(
    "Jais2ForCausalLM",
    "jais2",
    "Jais 2 (8B, 70B)",
    "layer norms, MLP of squared ReLU without gates, biases",
    {
        "layer_norm_eps": 1e-5,
        "hidden_act": "relu2",
        "max_position_embeddings": 8192,
        "attention_bias": True,
        "mlp_bias": True,
    },
    read,
    TENSORS,
    names={"rms_norm_eps": "layer_norm_eps"},
)
