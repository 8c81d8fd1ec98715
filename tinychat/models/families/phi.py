"""Phi-1, Phi-1.5 and Phi-2: attention and an MLP without gates beside each other, behind one layer norm.

All linears have biases, the output matrix too; a part of each head is rotated (Li et al., 2023,
https://arxiv.org/abs/2309.05463; github.com/huggingface/transformers, models/phi).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LAYER, MLP, TensorNames, layer_norms
from tinychat.models.family import Family

DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.5,
}
TENSORS = TensorNames(
    o=f"{ATTENTION}dense",
    gate_up=(f"{MLP}fc1",),
    down=f"{MLP}fc2",
    norms=layer_norms(f"{LAYER}input_layernorm", f"{LAYER}input_layernorm", "model.final_layernorm"),
    norm_bias=True,
    lm_head_bias=True,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All is the same in all sizes."""
    values.require(qk_layernorm=False, tie_word_embeddings=False)
    config = replace(config, layer_norm=True, gated=False, parallel=True)
    return replace(config, qkv_bias=True, o_bias=True, mlp_bias=True)


PHI = Family(
    "PhiForCausalLM",
    "phi",
    "Phi-1, 1.5, 2",
    "MLP without gates beside attention, a part of each head rotated",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names={"rms_norm_eps": "layer_norm_eps"},
)
