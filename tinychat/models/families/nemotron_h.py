"""Nemotron-H and Nemotron 3: each layer is Mamba-2, attention, an MLP or experts, behind one norm.

Attention has no positions: states know the order of tokens. MLPs and experts have no gates; the experts of some models
read and give a latent, narrower than the residual stream (NVIDIA, 2025, https://arxiv.org/abs/2504.03624 and
https://arxiv.org/abs/2512.20848; github.com/huggingface/transformers, models/nemotron_h).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_layer_types
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames, TensorNames, layer_norms
from tinychat.models.experts import read_sigmoid_experts
from tinychat.models.family import Family
from tinychat.models.mamba import read_mamba

LAYER = "backbone.layers.{}."
NORM, MIXER = f"{LAYER}norm", f"{LAYER}mixer."
TENSORS = TensorNames(
    embed="backbone.embeddings",
    qkv=(f"{MIXER}q_proj", f"{MIXER}k_proj", f"{MIXER}v_proj"),
    o=f"{MIXER}o_proj",
    gate_up=(f"{MIXER}up_proj",),
    down=f"{MIXER}down_proj",
    norms=layer_norms(NORM, NORM, "backbone.norm_f"),
    mamba=MIXER,
    experts=ExpertNames(
        (f"{MIXER}gate",),
        (f"{MIXER}experts.{{}}.up_proj",),
        f"{MIXER}experts.{{}}.down_proj",
        f"{MIXER}shared_experts.",
        f"{MIXER}gate.e_score_correction_bias",
        (f"{MIXER}fc1_latent_proj", f"{MIXER}fc2_latent_proj"),
    ),
)
STATE, ATTENTION, SPARSE, DENSE = KINDS = ("linear_attention", "full_attention", "moe", "mlp")
# By the signs of older files, and by their names.
SIGNS = dict(zip("M*E-", KINDS)) | {"mamba": STATE, "attention": ATTENTION}
NAMES = {
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "mlp_hidden_act",
    "num_experts": "n_routed_experts",
    "mamba_n_groups": "n_groups",
    "mamba_n_heads": "mamba_num_heads",
    "mamba_d_state": "ssm_state_size",
    "mamba_d_head": "mamba_head_dim",
    "mamba_d_conv": "conv_kernel",
    "mamba_proj_bias": "use_bias",
    "mamba_conv_bias": "use_conv_bias",
}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the kinds of layers, and their number, as newer files have them."""
    found = raw.get("layers_block_type") or raw.get("layer_types") or raw.get("hybrid_override_pattern") or [*KINDS]
    if not isinstance(found, list | str):
        return {**raw, "layer_types": found}
    kinds = [SIGNS.get(each, each) if isinstance(each, str) else each for each in found]
    return {**raw, "layer_types": kinds, "num_hidden_layers": len(kinds)}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers are what; steps have a least size, whatever limits the file has."""
    if values.optional_text("mamba_hidden_act") not in (None, "silu"):
        raise values.error("mamba_hidden_act", '"silu"')
    count = config.num_hidden_layers
    kinds = read_layer_types(values, count, KINDS) or []
    states, attention, sparse, dense = ([layer for layer in range(count) if kinds[layer] == kind] for kind in KINDS)
    if not (states and attention and len(states) + len(attention) < count):
        raise UnsupportedModelError(
            f"{values.source}: layers of Mamba-2, of attention and of MLPs or experts are needed, each at least once"
        )
    experts = None
    if sparse:
        values.require(mlp_bias=False)
        experts = replace(
            read_sigmoid_experts(values, sparse),
            shared_intermediate_size=values.integer("moe_shared_expert_intermediate_size", 1, 1 << 22),
            latent_size=values.optional_integer("moe_latent_size", 1, 1 << 20) or 0,
        )
    return replace(
        config,
        gated=False,
        mlp_bias=values.flag("mlp_bias", False),
        rotary_dims=(0,) * count,
        experts=experts,
        mamba=replace(read_mamba(values, states), step_limits=(values.number("time_step_min", 0.0, 1e6), math.inf)),
        mlp_alone=tuple(sorted((*sparse, *dense))),
    )


NEMOTRON_H = Family(
    "NemotronHForCausalLM",
    "nemotron_h",
    "Nemotron-H, Nemotron Nano 2, Nemotron 3 (Nano, Super)",
    "layers of Mamba-2, attention without positions, MLPs without gates, or experts by sigmoids, also of latents",
    {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_norm_epsilon": 1e-5,
        "mlp_hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "use_bias": False,
        "time_step_min": 0.001,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
    },
    read,
    TENSORS,
    names=NAMES,
    prepared=prepared,
)
