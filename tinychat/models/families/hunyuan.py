"""Hunyuan v1, dense and with experts: Llama's layers, whose queries and keys are normed behind the rotation.

Long contexts stretch the base of the rotation by a fixed factor. Every layer of the mixture has experts, and one that
all tokens pass, without a gate (Tencent, 2025; github.com/huggingface/transformers, models/hunyuan_v1_dense and
hunyuan_v1_moe).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LLAMA_NORMS, MLP, ExpertNames, TensorNames
from tinychat.models.experts import read_experts
from tinychat.models.families.llama import read_llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import rope_section

NORMS = {**LLAMA_NORMS, "q_norm": f"{ATTENTION}query_layernorm", "k_norm": f"{ATTENTION}key_layernorm"}
EXPERTS = ExpertNames((f"{MLP}gate.wg",), shared=f"{MLP}shared_mlp.")


def read_dense(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The base of the rotation is that of ``alpha``, where the file has it."""
    section, scaling, d = rope_section(values), config.rope_scaling, config.head_dim
    alpha = section.optional_number("alpha", 1.0, 1e9) if section else None
    if alpha and scaling and scaling.rope_type == "dynamic" and d > 2:
        config = replace(config, rope_theta=config.rope_theta * alpha ** (d / (d - 2)), rope_scaling=None)
    return replace(read_llama(values, config), mlp_bias=False, qk_norm="rotated")


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The expert that all tokens pass is as wide as an MLP."""
    experts = read_experts(values, "moe_intermediate_size", range(config.num_hidden_layers))
    return replace(
        read_dense(values, config), experts=replace(experts, shared_intermediate_size=config.intermediate_size)
    )


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with numbers for all layers, of which it may list one for each."""
    found = {"moe_intermediate_size": raw.get("intermediate_size"), **raw}
    for key in ("moe_topk", "moe_intermediate_size"):
        listed = found.get(key)
        if isinstance(listed, list) and listed and all(each == listed[0] for each in listed):
            found[key] = listed[0]
    return found


DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
HUNYUAN_DENSE = Family(
    "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_dense",
    "Hunyuan 0.5B, 1.8B, 4B, 7B",
    "q/k norm behind the rotation, stretched base of the rotation",
    DEFAULTS,
    read_dense,
    TensorNames(norms=NORMS),
)
HUNYUAN_MOE = Family(
    "HunYuanMoEV1ForCausalLM",
    "hunyuan_v1_moe",
    "Hunyuan-A13B",
    "experts, a shared expert, q/k norm behind the rotation",
    {**DEFAULTS, "num_experts": 1, "moe_topk": 1},
    read_moe,
    TensorNames(norms=NORMS, experts=EXPERTS),
    names={"num_experts_per_tok": "moe_topk"},
    prepared=prepared,
)
