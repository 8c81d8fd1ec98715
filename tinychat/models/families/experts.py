"""Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, FlexOlmo and Mellum: layers of dense models, with experts as MLPs.

Mixtral makes the probabilities of the chosen experts sum up to 1, the others as the file sets. Qwen2-MoE adds an expert
that all tokens pass, behind a gate. OLMoE norms queries and keys over all heads; FlexOlmo's norms are those of OLMo 2.
Mellum 2 is Qwen3-MoE with a window
and a rotation by layer (Jiang et al., 2024,
https://arxiv.org/abs/2401.04088; Qwen Team, 2024 and 2025; Muennighoff et al., 2024, https://arxiv.org/abs/2409.02060;
github.com/huggingface/transformers, models/mixtral, qwen2_moe, qwen3_moe, olmoe, flex_olmo and mellum).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, read_window, read_windows, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, MLP, ExpertNames, TensorNames
from tinychat.models.experts import Experts, read_experts, read_sparse_layers, with_num_experts, with_shared_expert
from tinychat.models.families import llama, olmo2
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS, split_rope

SPARSE = f"{LAYER}block_sparse_moe."
MIXTRAL_EXPERTS = ExpertNames(
    (f"{SPARSE}gate",), (f"{SPARSE}experts.{{}}.w1", f"{SPARSE}experts.{{}}.w3"), f"{SPARSE}experts.{{}}.w2"
)
MIXTRAL_TENSORS = TensorNames(experts=MIXTRAL_EXPERTS)
TENSORS = TensorNames(experts=ExpertNames((f"{MLP}gate", f"{MLP}shared_expert_gate"), shared=f"{MLP}shared_expert."))


def read_mixtral(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; there are no biases."""
    experts = read_experts(values, "intermediate_size", range(config.num_hidden_layers))
    return replace(llama.read_mistral(values, config), experts=experts)


def read_qwen2_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every other layer has the window, if it is used: of those before ``max_window_layers``."""

    def is_windowed(layer: int) -> bool:
        return layer % 2 == 0 and layer < values.integer("max_window_layers", 0, MAX_POSITIONS)

    windows = read_windows(values, config.num_hidden_layers, is_windowed, switched=True)
    experts = with_shared_expert(values, read_sparse(values, config), gated=True)
    return replace(config, qkv_bias=values.flag("qkv_bias", True), sliding_windows=windows, experts=experts)


def read_qwen3_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All layers have the window, if it is used."""
    windows = (read_window(values, switched=True) or 0,) * config.num_hidden_layers
    config = with_attention_bias(values, config)
    return replace(config, qk_norm="head", sliding_windows=windows, experts=read_sparse(values, config))


def read_sparse(values: ConfigValues, config: ModelConfig) -> Experts:
    """Read Qwen's experts: every ``decoder_sparse_step``-th layer has some, but those of ``mlp_only_layers``."""
    step, dense = values.integer("decoder_sparse_step", 1, 4096), values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise values.error("mlp_only_layers", "a list of layers")
    layers = [i for i in range(config.num_hidden_layers) if (i + 1) % step == 0 and i not in dense]
    if not layers:
        raise values.error(
            "decoder_sparse_step", f"a number that leaves experts to one of the layers ({dense} have an MLP)"
        )
    return read_experts(values, "moe_intermediate_size", layers, norm_topk_prob=False)


def read_olmoe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; biases are those of the file."""
    values.require(clip_qkv=None)
    experts = read_experts(values, "intermediate_size", range(config.num_hidden_layers), norm_topk_prob=False)
    return replace(with_attention_bias(values, config), qk_norm="width", experts=experts)


def read_mellum(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Windows and experts are those of the layers that the file names; no window and experts everywhere by default."""
    L = config.num_hidden_layers
    config = replace(config, sliding_windows=read_windows(values, L, lambda layer: False))
    config = olmo2.rotated_by_kind(values, config)
    layers = read_sparse_layers(values, ["sparse"] * L)
    experts = read_experts(values, "moe_intermediate_size", layers, norm_topk_prob=True)
    return replace(with_attention_bias(values, config), qk_norm="head", experts=experts)


def prepared_mellum(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with one rotation, another for layers with a window, and ``num_experts``."""
    return split_rope(with_num_experts(raw))


_MIXTRAL = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
_QWEN2_MOE = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
}
_QWEN3_MOE = {
    **_QWEN2_MOE,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
_OLMOE = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "num_experts": 64,
    "num_experts_per_tok": 8,
}

MIXTRAL = Family(
    "MixtralForCausalLM",
    "mixtral",
    "Mixtral",
    "experts, sliding window",
    _MIXTRAL,
    read_mixtral,
    MIXTRAL_TENSORS,
    prepared=with_num_experts,
)
QWEN2_MOE = Family(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    "Qwen1.5-MoE, Qwen2-MoE",
    "experts, a shared expert, sliding window by layer",
    {**_QWEN2_MOE, "max_window_layers": 28, "shared_expert_intermediate_size": 5632},
    read_qwen2_moe,
    TENSORS,
    prepared=with_num_experts,
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    "Qwen3-MoE (30B-A3B, 235B-A22B)",
    "experts, q/k norm",
    _QWEN3_MOE,
    read_qwen3_moe,
    TENSORS,
    prepared=with_num_experts,
)
OLMOE = Family(
    "OlmoeForCausalLM",
    "olmoe",
    "OLMoE",
    "experts, q/k norm over all heads",
    _OLMOE,
    read_olmoe,
    TENSORS,
    prepared=with_num_experts,
)
FLEX_OLMO = Family(
    "FlexOlmoForCausalLM",
    "flex_olmo",
    "FlexOlmo",
    "experts, norms after, q/k norm over all heads",
    {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "rope_theta": 5e5,
        "num_experts": 7,
        "num_experts_per_tok": 5,
    },
    read_olmoe,
    replace(TENSORS, norms=olmo2.TENSORS.norms),
    prepared=with_num_experts,
)
MELLUM = Family(
    "MellumForCausalLM",
    "mellum",
    "Mellum 2",
    "experts, q/k norm, rotation and sliding window by layer",
    {
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "rope_parameters": {"rope_theta": 5e5},
        "sliding_rope_parameters": {"rope_theta": 1e4},
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
    },
    read_mellum,
    TENSORS,
    prepared=prepared_mellum,
)
