"""Kimi Linear: Kimi Delta Attention in most layers, latent attention without a rotation in the others, experts as MLPs.

Its states forget by channel, each channel's decay a linear of a short vector; so are gates of the output. The first
layer has an MLP; experts are those of DeepSeek-V3 (Kimi Team, 2025, https://arxiv.org/abs/2510.26692;
github.com/huggingface/transformers, models/kimi_linear).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, TensorNames
from tinychat.models.delta_net import DECAYS, GATES, WIDE_DECAYS, WIDE_GATES, DeltaNet
from tinychat.models.experts import read_sigmoid_experts, read_sparse_layers, with_shared
from tinychat.models.families import deepseek, qwen3_next
from tinychat.models.families.experts import MIXTRAL_EXPERTS, SPARSE
from tinychat.models.family import Family
from tinychat.models.state_layers import LONGEST, MOST_HEADS, read_dim
from tinychat.models.tensors import Linear, Norm, joined

TENSORS = TensorNames(
    experts=replace(MIXTRAL_EXPERTS, shared=f"{SPARSE}shared_experts.", bias=f"{SPARSE}gate.e_score_correction_bias")
)
MOST_LAYERS = 4096
# Keys of the section that published files have for layers with a state.
SECTION = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
NAMES = {
    "head_dim": "qk_rope_head_dim",
    "max_position_embeddings": "model_max_length",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the kinds of its layers by name, and the sizes of its states."""
    found, count = dict(raw), raw.get("num_hidden_layers")
    section = raw.get("linear_attn_config")
    if isinstance(section, Mapping):
        found |= {key: section[name] for name, key in SECTION.items() if name in section}
    if type(count) is not int or not 0 < count <= MOST_LAYERS:
        return found
    if found.get("layer_types") is None:
        listed = section.get("full_attn_layers") if isinstance(section, Mapping) else None
        # They are counted from 1.
        attention = listed if isinstance(listed, list) else range(5, count + 1, 4)
        found["layer_types"] = [qwen3_next.KINDS[layer + 1 in attention] for layer in range(count)]
    if found.get("mlp_layer_types") is None:
        dense = raw.get("first_k_dense_replace")
        first = dense if type(dense) is int else 1
        found["mlp_layer_types"] = ["dense" if layer < first else "sparse" for layer in range(count)]
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have attention, and which experts; no heads are rotated."""
    if values.get("moe_router_activation_func") not in (None, "sigmoid"):
        raise UnsupportedModelError(f"{values.source}: moe_router_activation_func other than sigmoid is not supported")
    if values.get("moe_layer_freq") not in (None, 1):
        raise UnsupportedModelError(f"{values.source}: moe_layer_freq other than 1 is not supported")
    values.require(mla_use_nope=True)
    count = config.num_hidden_layers
    layers = qwen3_next.read_state_layers(values, config, lambda: 4)
    heads, size = values.integer("linear_num_heads", 1, MOST_HEADS), read_dim(values, "linear_head_dim")
    taps = values.integer("linear_conv_kernel_dim", 2, LONGEST)
    net = DeltaNet(tuple(layers), heads, heads, size, size, taps, config.rms_norm_eps, by_channel=True, rank=size)
    sparse = read_sparse_layers(values, ["dense"] + ["sparse"] * (count - 1))
    return replace(
        deepseek.with_latents(values, config, neighbours=False),
        rotary_dims=(0,) * count,
        delta_net=net,
        experts=with_shared(values, read_sigmoid_experts(values, sparse)),
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers, those of Kimi Delta Attention last."""
    net, D = qwen3_next.net_of(config), config.hidden_size
    inner, rank, heads = net.key_size, net.rank, net.key_heads

    def linear(name: str, sources: str, rows: tuple[int, ...], columns: int = D) -> Linear:
        parts = tuple(f"{ATTENTION}{source}_proj" for source in sources.split())
        return Linear(name, parts, rows, columns, len(net.layers), at=net.layers)

    if rank:
        gates = [
            linear(GATES, "f_a b", (rank, heads)),
            linear(DECAYS, "f_b", (inner,), rank),
            linear("delta_low_proj", "g_a", (rank,)),
            linear("delta_gate_proj", "g_b", (inner,), rank),
        ]
    else:
        gates = [
            linear(GATES, "b", (heads,)),
            linear(WIDE_DECAYS, "f", (inner,)),
            linear(WIDE_GATES, "g", (inner,)),
        ]
    inputs = linear("delta_in_proj", "q k v", (inner,) * 3)
    return [*deepseek.linears(config, names), inputs, *gates, linear("delta_out_proj", "o", (D,), inner)]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the other vectors of Kimi Delta Attention."""
    net, taps = qwen3_next.net_of(config), joined(*(f"{ATTENTION}{part}_conv1d" for part in "qkv"))
    vectors = {
        "A_log": (f"{ATTENTION}A_log", net.key_heads),
        "dt_bias": (f"{ATTENTION}dt_bias", net.key_size),
        "norm": (f"{ATTENTION}o_norm", net.value_dim),
        "taps": (taps, net.taps * net.channels),
    }
    count, at = len(net.layers), net.layers
    return [
        *deepseek.norms(config, names),
        *(
            Norm(f"delta_{name}", source, size, count, padded=False, at=at, flattened=name in ("A_log", "taps"))
            for name, (source, size) in vectors.items()
        ),
    ]


DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 32,
    "model_max_length": 1048576,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "moe_renormalize": True,
    "num_expert_group": 1,
    "topk_group": 1,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
KIMI_LINEAR = Family(
    "KimiLinearForCausalLM",
    "kimi_linear",
    "Kimi Linear",
    "Kimi Delta Attention in most layers, latent attention (MLA) in the others, experts by sigmoids, a shared expert",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    names=NAMES,
    prepared=prepared,
)
