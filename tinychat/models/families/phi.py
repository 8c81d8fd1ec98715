"""Phi-1, Phi-1.5 and Phi-2: attention and an MLP without gates beside each other, behind one layer norm.

All linears have biases, the output matrix too; a part of each head is rotated (Li et al., 2023,
https://arxiv.org/abs/2309.05463; github.com/huggingface/transformers, models/phi).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama, stablelm, starcoder2
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm

DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.5,
}
RENAMED = {f"{llama.ATTENTION}o_proj": f"{llama.ATTENTION}dense", "model.norm": "model.final_layernorm"}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All is the same in all sizes."""
    stablelm.refuse_head_norms(values)
    if config.tie_word_embeddings:
        raise UnsupportedModelError(f"{values.source}: tie_word_embeddings beside a bias of lm_head is not supported")
    config = replace(config, layer_norm=True, gated=False, parallel=True)
    return replace(config, qkv_bias=True, o_bias=True, mlp_bias=True)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    found = starcoder2.ungated(config, f"{llama.MLP}fc1", f"{llama.MLP}fc2")
    return [
        replace(
            linear,
            sources=tuple(RENAMED.get(source, source) for source in linear.sources),
            bias=linear.bias or linear.name == "lm_head",
        )
        for linear in found
    ]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms: attention and MLP share one."""
    found = stablelm.layer_norms(config, llama.norms(config))
    return [replace(norm, source=RENAMED.get(norm.source, norm.source)) for norm in found]


FAMILIES = (
    Family(
        "PhiForCausalLM",
        "phi",
        "Phi-1, 1.5, 2",
        "MLP without gates beside attention, a part of each head rotated",
        DEFAULTS,
        read,
        linears,
        norms,
        partial_rotary=True,
        names={"rms_norm_eps": "layer_norm_eps"},
    ),
)
