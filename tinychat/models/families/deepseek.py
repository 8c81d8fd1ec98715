"""DeepSeek-V2 and V3, Youtu-LLM, Sarvam-105B and Mistral Small 4: Llama's layers with multi-head latent attention.

Queries are linears of a latent of their own, or of the layer's input; neighbouring channels are rotated together.
DeepSeek has experts behind its first layers, and some that all tokens pass. V3 chooses them by sigmoids, from groups
(DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434 and https://arxiv.org/abs/2412.19437;
github.com/huggingface/transformers, models/deepseek_v2, deepseek_v3, youtu, sarvam_mla and mistral4).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, TensorNames, attention_at, decoder_linears, decoder_norms
from tinychat.models.experts import read_experts, read_layers_behind_dense, read_sigmoid_experts, with_shared
from tinychat.models.families import glm4_moe, ministral3
from tinychat.models.family import Family, with_names
from tinychat.models.latent import Latents, read_latents
from tinychat.models.rope import magnitude
from tinychat.models.tensors import Linear, Norm, Order, halves_order


def with_latents(values: ConfigValues, config: ModelConfig, neighbours: bool = True) -> ModelConfig:
    """Return the configuration with latent attention, of heads whose rotated channels are `head_dim`."""
    latents = read_latents(values, config.head_dim, neighbours)
    if not latents.q_lora_rank:
        values.require(attention_bias=False)
    scaling = config.rope_scaling
    stretched = magnitude(scaling.factor, scaling.mscale_all_dim) if scaling and scaling.mscale_all_dim else 1.0
    return replace(
        with_attention_bias(values, config),
        num_key_value_heads=1,
        head_dim=latents.key_dim,
        attention_scale=latents.query_dim**-0.5 * stretched**2,
        latents=latents,
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: what all heads share is one, each head has its own between latents and attention."""
    sizes, found = _latents(config), decoder_linears(config, names)
    D, L, H = config.hidden_size, len(config.attention_layers), config.num_attention_heads
    queries, rank = H * sizes.query_dim, sizes.q_lora_rank
    of_queries, of_key = _orders(config)
    sources = f"{ATTENTION}{'q_a_proj' if rank else 'q_proj'}", f"{ATTENTION}kv_a_proj_with_mqa"
    rows, order = (rank or queries, sizes.kv_lora_rank + sizes.qk_rope_head_dim), (None if rank else of_queries, of_key)
    projections = [Linear("qkv_proj", sources, rows, D, L, config.qkv_bias, order=order)]
    if rank:
        projections.append(Linear("q_b_proj", (f"{ATTENTION}q_b_proj",), (queries,), rank, L, order=(of_queries,)))
    keys, values = (f"{ATTENTION}{name}.{{}}" for name in ("k_b_proj", "v_b_proj"))
    projections += [
        Linear("k_b_proj", (keys,), (sizes.kv_lora_rank,), sizes.qk_nope_head_dim, L, heads=H),
        Linear("v_b_proj", (values,), (sizes.v_head_dim,), sizes.kv_lora_rank, L, heads=H),
    ]
    listed = {each.name: [each] for each in found}
    listed["qkv_proj"] = [replace(each, at=attention_at(config)) for each in projections]
    listed["o_proj"] = [replace(each, columns=H * sizes.v_head_dim) for each in listed["o_proj"]]
    return [each for parts in listed.values() for each in parts]


def _orders(config: ModelConfig) -> Order:
    """Return the order of the rows of queries, and of the latent and the rotated key behind it."""
    sizes = _latents(config)
    if not sizes.neighbours:
        return None, None

    def rotated_last(heads: int, others: int) -> NDArray[np.intp]:
        rotated = sizes.qk_rope_head_dim
        head = np.concatenate([np.arange(others), others + halves_order(1, rotated, rotated)])
        rows: NDArray[np.intp] = (np.arange(heads)[:, None] * len(head) + head).reshape(-1)
        return rows

    return rotated_last(config.num_attention_heads, sizes.qk_nope_head_dim), rotated_last(1, sizes.kv_lora_rank)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, with those of latents."""
    sizes = {"q_a_norm": _latents(config).q_lora_rank, "kv_a_norm": _latents(config).kv_lora_rank}
    L, at = len(config.attention_layers), attention_at(config)
    found = [
        Norm(name, f"{ATTENTION}{name}".replace("norm", "layernorm"), size, L, padded=False, at=at)
        for name, size in sizes.items()
        if size
    ]
    return [*decoder_norms(config, names), *found]


def _latents(config: ModelConfig) -> Latents:
    assert config.latents is not None
    return config.latents


def read_v2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The probabilities of the chosen experts are left as they are; groups of experts are not looked at."""
    if values.get("topk_method") not in (None, "greedy") and values.get("n_group") not in (None, 1):
        raise UnsupportedModelError(
            f"{values.source}: n_group above 1 is not supported; supported is topk_method greedy"
        )
    values.require(norm_topk_prob=False)
    layers = read_layers_behind_dense(values, config.num_hidden_layers)
    experts = with_shared(values, read_experts(values, "moe_intermediate_size", layers))
    scale = values.number("routed_scaling_factor", 1e-6, 1e6)
    return replace(with_latents(values, config), experts=replace(experts, norm_topk_prob=False, scale=scale))


def read_v3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers for the prediction of several tokens, which stand behind the others, are not read."""
    layers = read_layers_behind_dense(values, config.num_hidden_layers)
    experts = with_shared(values, read_sigmoid_experts(values, layers))
    return replace(read_youtu(values, config), experts=experts)


def read_mistral4(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Queries grow with the position; the probabilities of the chosen experts are made to sum up to 1."""
    if values.get("n_group") not in (None, 1):
        raise UnsupportedModelError(f"{values.source}: n_group above 1 is not supported")
    if values.number("routed_scaling_factor", 1e-6, 1e6) != 1:
        raise UnsupportedModelError(f"{values.source}: routed_scaling_factor is not supported")
    layers = read_layers_behind_dense(values, config.num_hidden_layers)
    experts = read_experts(values, "moe_intermediate_size", layers, norm_topk_prob=True)
    found = replace(read_youtu(values, config), experts=with_shared(values, experts))
    return ministral3.with_growing_queries(values, found)


def without_partial_rotary(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file whose heads are what is rotated of them: that part is named apart, too."""
    found, rope = {**raw, "partial_rotary_factor": None}, raw.get("rope_parameters")
    if isinstance(rope, Mapping):
        found["rope_parameters"] = {key: value for key, value in rope.items() if key != "partial_rotary_factor"}
    return found


def read_youtu(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has an MLP."""
    return with_latents(values, config, values.flag("rope_interleave", True))


def prepared_sarvam(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with DeepSeek's keys; its "deepseek_yarn" is YaRN."""
    found, rope = dict(_with_deepseek_names(raw)), raw.get("rope_scaling")
    if isinstance(rope, Mapping) and "deepseek_yarn" in (rope.get("type"), rope.get("rope_type")):
        found["rope_scaling"] = {**rope, "type": "yarn", "rope_type": "yarn"}
    return found


# What its heads rotate is the size of a head in other files.
NAMES = {"head_dim": "qk_rope_head_dim", "num_experts": "n_routed_experts"}
_with_deepseek_names = with_names({"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"})
_SIZES = {
    "rms_norm_eps": 1e-6,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
}

_V2 = {
    **{key: value for key, value in _SIZES.items() if key != "rope_interleave"},
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": None,
    "routed_scaling_factor": 1.0,
}
_V3 = {
    **_SIZES,
    "num_key_value_heads": 128,
    "max_position_embeddings": 4096,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
}

DEEPSEEK_V2 = Family(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    "DeepSeek-V2-Lite",
    "latent attention (MLA), experts, shared experts",
    _V2,
    read_v2,
    glm4_moe.TENSORS,
    linears,
    norms,
    names=NAMES,
)
DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    "DeepSeek-V3, Moonlight",
    "latent attention (MLA), experts by sigmoids, in groups, a shared expert",
    _V3,
    read_v3,
    glm4_moe.TENSORS,
    linears,
    norms,
    names=NAMES,
)
SARVAM_MLA = Family(
    "SarvamMLAForCausalLM",
    "sarvam_mla",
    "Sarvam 105B",
    "latent attention (MLA), experts by sigmoids, a shared expert",
    {
        **{key: value for key, value in _V3.items() if key != "num_key_value_heads"},
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "n_routed_experts": 128,
        "n_group": 1,
        "topk_group": 1,
    },
    read_v3,
    glm4_moe.TENSORS,
    linears,
    norms,
    also_written=("DeepseekV3ForCausalLM",),
    names=NAMES,
    prepared=prepared_sarvam,
)
MISTRAL4 = Family(
    "Mistral4ForCausalLM",
    "mistral4",
    "Mistral Small 4 (119B-A6.5B)",
    "latent attention (MLA), experts, a shared expert, yarn, scores that grow with the position",
    {
        **_SIZES,
        "q_lora_rank": 1024,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "num_key_value_heads": 32,
        "max_position_embeddings": 1048576,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "norm_topk_prob": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    read_mistral4,
    glm4_moe.TENSORS,
    linears,
    norms,
    names=NAMES,
    prepared=without_partial_rotary,
)
YOUTU = Family(
    "YoutuForCausalLM",
    "youtu",
    "Youtu-LLM",
    "latent attention (MLA)",
    {**_SIZES, "max_position_embeddings": 131072, "tie_word_embeddings": True},
    read_youtu,
    linears=linears,
    norms=norms,
    names={"head_dim": "qk_rope_head_dim"},
)
