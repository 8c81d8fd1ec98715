"""Phi-3.5-MoE, Phi-mini-MoE and Phi-tiny-MoE: Mixtral's layers between layer norms, with experts by SparseMixer.

Each of a token's two experts has its probability among the logits that are near its own (Liu et al., 2024,
https://arxiv.org/abs/2409.12136; Li et al., 2025, https://arxiv.org/abs/2506.18349;
github.com/huggingface/transformers, models/phimoe).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.experts import with_num_experts
from tinychat.models.families import experts
from tinychat.models.family import Family

TENSORS = replace(experts.MIXTRAL_TENSORS, norm_bias=True, lm_head_bias=True)
# Of the rotary embedding: transformers multiplies angles' cosines and sines by them.
_FACTORS = "short_mscale", "long_mscale"


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with one factor for short and for long sequences, as others have it."""
    found = dict(with_num_experts(raw))
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        if isinstance(rope, Mapping) and len({repr(rope.get(name)) for name in _FACTORS}) == 1:
            found[key] = {**rope, "attention_factor": rope.get(_FACTORS[0])}
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The output matrix has a bias, as all published files say; that of attention is the file's."""
    values.require(lm_head_bias=True)
    for key in ("rope_scaling", "rope_parameters"):
        rope = values.optional_section(key)
        if rope and rope.get(_FACTORS[0]) != rope.get(_FACTORS[1]):
            raise rope.error(_FACTORS[1], f"the same as {_FACTORS[0]}")
    found = with_attention_bias(values, experts.read_mixtral(values, config))
    assert found.experts is not None
    mixture = replace(found.experts, mixing_reach=2 * values.number("router_jitter_noise", 1e-6, 1.0))
    return replace(found, layer_norm=True, experts=mixture)


_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.01,
    "lm_head_bias": False,
}

# By the name that published files have, and that of transformers.
PHI_MOE = Family(
    "PhiMoEForCausalLM",
    "phimoe",
    "Phi-3.5-MoE, Phi-mini-MoE (7.6B-A2.4B), Phi-tiny-MoE (3.8B-A1.1B)",
    "layer norms, experts by SparseMixer, longrope, biases",
    _DEFAULTS,
    read,
    TENSORS,
    prepared=prepared,
)
PHIMOE = replace(PHI_MOE, architecture="PhimoeForCausalLM", models="the same", covered="the same")
