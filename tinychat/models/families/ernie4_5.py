"""ERNIE 4.5: Llama's layers, of which neighbouring channels are rotated together.

The mixture chooses experts by probabilities that sum up to 1, and a bias of each, which counts for the choice alone.
One that looks at images has a router and experts for these alone, behind those of text; they are not read (Baidu, 2025,
https://ernie.baidu.com/blog/posts/ernie4.5; github.com/huggingface/transformers, models/ernie4_5, ernie4_5_moe and
ernie4_5_vl_moe).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, ExpertNames, TensorNames, decoder_linears, decoder_norms, neighbours_rows
from tinychat.models.experts import MOST, ROUTER, read_experts, read_sparse_layers
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, rows_of

TENSORS = TensorNames(qkv_order=neighbours_rows, experts=ExpertNames(bias=f"{MLP}moe_statics.e_score_correction_bias"))

# Keys of which a file has one number for text, and one for images.
BOTH = ("moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
# Defaults of the mixture that does not look at images.
OWN = {"moe_intermediate_size": 1536, "moe_layer_start_index": 1, "moe_layer_interval": 1}
COMMON = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
    "tie_word_embeddings": True,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none."""
    bias = values.flag("use_bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every so many layers have experts, from one layer to another; there are no biases."""
    values.require(use_bias=False)
    values.optional_number("moe_norm_min", 0.0, 1e-6)
    L = config.num_hidden_layers
    first, step = values.integer("moe_layer_start_index", 0, L - 1), values.integer("moe_layer_interval", 1, 4096)
    last = values.optional_integer("moe_layer_end_index", -1, 4096)
    layers = [i for i in range(first, L if last is None or last < 0 else min(last + 1, L)) if (i + 1) % step == 0]
    if not layers:
        raise values.error("moe_layer_interval", f"a number that leaves experts to one of the {L} layers")
    experts = read_experts(values, "moe_intermediate_size", layers)
    shared = experts.intermediate_size * values.integer("moe_num_shared_experts", 0, MOST)
    return replace(config, experts=replace(experts, biased=True, shared_intermediate_size=shared))


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: biases of experts have an axis more."""
    return [replace(each, flattened=each.name == "router_bias") for each in decoder_norms(config, names)]


def prepared_vl(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with those of text alone, the first of two; newer files lack some."""
    found = {**OWN, **raw}
    return found | {key: each[0] for key in BOTH if isinstance(each := raw.get(key), list) and each}


def read_vl(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Newer files list the layers that have experts."""
    config = read_moe(values, config)
    assert config.experts is not None
    if values.get("mlp_layer_types") is None:
        return config
    layers = read_sparse_layers(values, [""] * config.num_hidden_layers)
    return replace(config, experts=replace(config.experts, layers=tuple(layers)))


def linears_vl(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those of routers have their columns first."""
    return [replace(each, transposed=each.name == ROUTER) for each in decoder_linears(config, names)]


def norms_vl(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms: biases of experts have a row for those of text, and one for others."""
    return [
        replace(each, source=rows_of(each.source, 1, 1)[0]) if each.flattened else each for each in norms(config, names)
    ]


_MOE = {
    **COMMON,
    "num_key_value_heads": 4,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
}
ERNIE4_5_MOE = Family(
    "Ernie4_5_MoeForCausalLM",
    "ernie4_5_moe",
    "ERNIE 4.5 with experts (21B-A3B, 300B-A47B)",
    "experts by probabilities and biases, shared experts, rotation by neighbours",
    {**_MOE, **OWN},
    read_moe,
    TENSORS,
    norms=norms,
    names={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)
ERNIE4_5_VL = replace(
    ERNIE4_5_MOE,
    architecture="Ernie4_5_VLMoeTextForCausalLM",
    model_type="ernie4_5_vl_moe_text",
    models="ERNIE 4.5 VL (text: 28B-A3B, Thinking, 424B-A47B)",
    covered="the same",
    defaults=_MOE,
    read=read_vl,
    linears=linears_vl,
    norms=norms_vl,
    prepared=prepared_vl,
)
ERNIE4_5 = Family(
    "Ernie4_5ForCausalLM",
    "ernie4_5",
    "ERNIE 4.5 (dense: 0.3B)",
    "rotation by neighbours",
    {**COMMON, "num_key_value_heads": 2, "head_dim": 128},
    read,
    TensorNames(qkv_order=neighbours_rows),
)
