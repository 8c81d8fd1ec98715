"""Ling 3.0: Kimi Delta Attention in most layers, latent attention with a gate for each head in the others, experts.

Decays and gates of states are linears of a layer's input, and the logarithms of decays have a bound; latent attention
rotates, in neighbouring pairs. In the last layers of the larger model, SiLU and what it lets through have limits, which
transformers leaves out (Ling Team, 2026; github.com/huggingface/transformers, models/bailing_hybrid).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION
from tinychat.models.delta_net import DeltaNet
from tinychat.models.experts import read_sigmoid_experts, read_sparse_layers, with_shared
from tinychat.models.families import deepseek, glm4_moe, kimi_linear, qwen3_next
from tinychat.models.family import Family, with_names
from tinychat.models.state_layers import LONGEST, MOST_HEADS, read_dim

TENSORS = replace(glm4_moe.TENSORS, head_gates=f"{ATTENTION}g_proj")
# Of published files; transformers writes those of Kimi Linear.
_with_written_names = with_names({key: name for key, name in kimi_linear.NAMES.items() if key != "head_dim"})
_PARTS = {
    "model.word_embeddings.": "model.embed_tokens.",
    ".attention.": ".self_attn.",
    ".self_attn.dense.": ".self_attn.o_proj.",
    ".self_attn.forget_gate.": ".self_attn.",
    ".gate.expert_bias": ".gate.e_score_correction_bias",
}


def renamed(name: str) -> str:
    """Return a tensor's name as DeepSeek and Kimi Linear have it."""
    for theirs, ours in _PARTS.items():
        name = name.replace(theirs, ours)
    return name


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the sizes of states, of which published files have `head_dim`."""
    sizes = {"linear_head_dim": raw.get("head_dim", 128), "linear_num_heads": raw.get("num_attention_heads")}
    return {**sizes, **deepseek.without_partial_rotary(_with_written_names(raw))}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have attention: the last of each group, unless the file lists them."""
    values.require(kda_safe_gate=True, no_kda_lora=True, rope_interleave=True)
    if values.get("gated_attention_proj_granularity_type") not in (None, "head_wise"):
        raise UnsupportedModelError(f"{values.source}: gates of attention are supported by head only")
    layers = qwen3_next.read_state_layers(values, config, lambda: values.integer("layer_group_size", 1, 4096))
    heads, size = values.integer("linear_num_heads", 1, MOST_HEADS), read_dim(values, "linear_head_dim")
    taps, bound = values.integer("short_conv_kernel_size", 2, LONGEST), values.number("kda_lower_bound", -80, -1e-3)
    net = DeltaNet(
        tuple(layers), heads, heads, size, size, taps, config.rms_norm_eps, by_channel=True, decay_bound=bound
    )
    L = config.num_hidden_layers
    dense = values.integer("first_k_dense_replace", 0, L - 1)
    sparse = read_sparse_layers(values, ["dense"] * dense + ["sparse"] * (L - dense))
    return replace(
        deepseek.with_latents(values, config),
        gated_heads=True,
        delta_net=net,
        experts=replace(
            with_shared(values, read_sigmoid_experts(values, sparse)),
            limits=_read_limits(values, "expert_swiglu_limit_list", sparse),
            shared_limits=_read_limits(values, "share_expert_swiglu_limit_list", sparse),
        ),
    )


def _read_limits(values: ConfigValues, key: str, layers: Sequence[int]) -> tuple[float, ...]:
    """Read the limits of some layers, of a list for all, in which 0 is none."""
    found = values.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) <= max(layers) or not all(map(_is_limit, found)):
        raise values.error(key, "a list of a number for each layer, 0 for no limit")
    limits = tuple(float(found[layer] or inf) for layer in layers)
    return limits if min(limits) < inf else ()


def _is_limit(each: object) -> bool:
    return each is None or (type(each) in (int, float) and 0 <= each < inf)  # type: ignore[operator]


# By the name that published files have, and that of transformers.
LING3 = Family(
    "BailingMoeV3ForCausalLM",
    "bailing_hybrid",
    "Ling 3.0 (tiny, flash)",
    "Kimi Delta Attention in most layers, gated latent attention (MLA) in the others, experts by sigmoids, in groups",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 32,
        "model_max_length": 262144,
        "rope_theta": 6e6,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "short_conv_kernel_size": 4,
        "layer_group_size": 6,
        "kda_lower_bound": -5.0,
        "first_k_dense_replace": 2,
        "moe_intermediate_size": 768,
        "num_experts": 512,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "moe_renormalize": True,
        "num_expert_group": 8,
        "topk_group": 4,
    },
    read,
    TENSORS,
    kimi_linear.linears,
    kimi_linear.norms,
    names=kimi_linear.NAMES,
    prepared=prepared,
    renamed=renamed,
)
BAILING_HYBRID = replace(LING3, architecture="BailingHybridForCausalLM", models="the same", covered="the same")
