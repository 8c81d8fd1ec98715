"""OLMo Hybrid: Gated DeltaNet in most layers, OLMo 2's attention without a rotation in the others.

Layers with attention are normed after attention and MLP, the others before. Rates may be up to 2. (AI2, 2026;
github.com/huggingface/transformers, models/olmo_hybrid.)
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import HEAD_NORMS, LAYER, TensorNames, decoder_norms
from tinychat.models.delta_net import GATES, read_delta_net
from tinychat.models.families import qwen3_next
from tinychat.models.families.qwen3_next import DELTA
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, joined

# Added to the mean square of each head's result, whatever the file says.
NORM_EPS = 1e-5
AFTER = ("post_self_attn_layernorm", "post_mlp_layernorm")
TENSORS = TensorNames(
    norms={
        "input_layernorm": f"{LAYER}attention_layer_norm",
        "post_self_attn_layernorm": f"{LAYER}post_attention_layernorm",
        "post_attention_layernorm": f"{LAYER}feedforward_layer_norm",
        "post_mlp_layernorm": f"{LAYER}post_feedforward_layernorm",
        "norm": "model.norm",
        **HEAD_NORMS,
    }
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Which layers have attention; their heads are rotated only where the file has a base."""
    layers, count = qwen3_next.read_state_layers(values, config, lambda: 4), config.num_hidden_layers
    scale = 2.0 if values.flag("linear_allow_neg_eigval", True) else 1.0
    section, theta = values.get("rope_parameters"), values.get("rope_theta")
    has_rotation = (section.get("rope_theta", theta) if isinstance(section, dict) else theta) is not None
    return replace(
        with_attention_bias(values, config),
        qk_norm="width",
        rotary_dims=config.rotary_dims if has_rotation else (0,) * count,
        delta_net=read_delta_net(values, layers, NORM_EPS, scale),
        normed_after=tuple(layer for layer in range(count) if layer not in layers),
    )


def with_head_sizes(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with numbers and sizes of heads with a state, which it may leave to others."""
    heads, width = raw.get("num_attention_heads"), raw.get("hidden_size")
    if not (type(heads) is int and type(width) is int):
        return raw
    found = {key: value for key, value in raw.items() if value is not None}
    key_heads = found.setdefault("linear_num_key_heads", heads)
    found.setdefault("linear_num_value_heads", heads)
    if type(key_heads) is int and key_heads > 0:
        key_dim = found.setdefault("linear_key_head_dim", int(0.75 * width / key_heads))
        if type(key_dim) is int:
            found.setdefault("linear_value_head_dim", 2 * key_dim)
    return {**raw, **found}


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; those of Gated DeltaNet have a tensor each."""
    net, D = qwen3_next.net_of(config), config.hidden_size
    inputs = tuple(f"{DELTA}{part}_proj" for part in "qkvg")
    gates = tuple(f"{DELTA}{part}_proj" for part in "ba")
    rows, heads = (net.key_size, net.key_size, net.value_size, net.value_size), net.value_heads
    projections = [
        Linear("delta_in_proj", inputs, rows, D, None),
        Linear(GATES, gates, (heads, heads), D, None),
    ]
    return qwen3_next.hybrid_linears(config, names, projections, f"{DELTA}o_proj")


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, of which each layer has those of its kind, and the other vectors of Gated DeltaNet."""
    net, found = qwen3_next.net_of(config), []
    for each in decoder_norms(config, names):
        at = each.at or (config.normed_after if each.name in AFTER else net.layers)
        found.append(each if each.layers is None else replace(each, layers=len(at), at=at))
    return [*found, *qwen3_next.delta_vectors(net, "o_norm", joined(*(f"{DELTA}{part}_conv1d" for part in "qkv")))]


DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 65536,
    "rope_theta": 10000.0,
    "linear_conv_kernel_dim": 4,
}
OLMO_HYBRID = Family(
    "OlmoHybridForCausalLM",
    "olmo_hybrid",
    "OLMo Hybrid",
    "Gated DeltaNet in most layers, norms after in the others, q/k norm over all heads",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    prepared=with_head_sizes,
)
