"""ZAYA1: attention that is compressed by convolutions (CCA), and one expert of each layer for a token, or none.

Routers are MLPs, and each hands its vector on to the next layer's. Embedding, branches and residual stream have a scale
and a shift for each channel (Zyphra, 2026, https://arxiv.org/abs/2605.05365; github.com/huggingface/transformers,
models/zaya).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.compressed import compressed_heads, compressed_linears, compressed_norms
from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LAYER, MLP, ExpertNames, TensorNames, decoder_linears, decoder_norms
from tinychat.models.experts import read_experts
from tinychat.models.families.experts import EXPERT
from tinychat.models.family import Family
from tinychat.models.rope_scaling import FULL, SLIDING, read_sliding_theta, split_rope
from tinychat.models.tensors import Linear, Norm

KINDS = {"hybrid": FULL, "hybrid_sliding": SLIDING}  # of layers, by their names in the file
ROUTER_MLP = f"{MLP}gate.router_mlp."
TENSORS = TensorNames(
    experts=ExpertNames(
        (f"{ROUTER_MLP}out_proj",),
        (f"{EXPERT}gate_proj", f"{EXPERT}up_proj"),
        f"{EXPERT}down_proj",
        bias=f"{MLP}gate.balancing_biases",
        router_mlp=(
            f"{MLP}gate.down_proj",
            f"{ROUTER_MLP}fc1",
            f"{ROUTER_MLP}fc2",
            f"{ROUTER_MLP}norm",
            f"{MLP}gate.router_states_scale",
        ),
    ),
)
# Scale and shift of what is added to the residual stream, then of that itself.
SCALES = {
    "branch_scale": "hidden_states_scale",
    "branch_shift": "hidden_states_bias",
    "stream_scale": "residual_scale",
    "stream_shift": "residual_bias",
}
LANES = 32  # channels of a head are a multiple of
_SLIDING_THETA = 10000.0
_ROPE = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_parameters": {FULL: _ROPE, SLIDING: _ROPE | {"rope_theta": _SLIDING_THETA}},
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 2048,
    "router_hidden_size": 256,
    "cca_time0": 2,
    "cca_time1": 2,
}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the usual names of kinds of layers, and their rotary embeddings apart."""
    found = {**raw, "rope_parameters": raw.get("rope_parameters") or DEFAULTS["rope_parameters"]}
    if isinstance(types := raw.get("layer_types"), list):
        found["layer_types"] = [KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in types]
    if isinstance(ropes := found["rope_parameters"], Mapping):
        found["rope_parameters"] = {KINDS.get(kind, kind): rope for kind, rope in ropes.items()}
    return split_rope(found)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """No layer has a window, unless the file names those that have one."""
    values.require(attention_bias=False, lm_head_bias=False)
    for key, only in {"cca_time0": 2, "cca_time1": 2, "num_experts_per_tok": 1}.items():
        if values.integer(key, 1, 64) != only:
            raise UnsupportedModelError(f"{values.source}: {key} other than {only} is not supported")
    L, d = config.num_hidden_layers, config.head_dim
    if d % LANES:
        raise values.error("head_dim", f"a multiple of {LANES}")
    experts = read_experts(values, "moe_intermediate_size", range(L))
    return replace(
        config,
        compressed=compressed_heads(L, config.num_attention_heads, config.num_key_value_heads, d),
        sliding_windows=read_windows(values, L, lambda layer: False),
        sliding_rope_theta=read_sliding_theta(values, _SLIDING_THETA),
        residual_scales=True,
        experts=replace(
            experts,
            norm_topk_prob=False,
            biased=True,
            can_skip=True,
            router_size=values.integer("router_hidden_size", 1, 1 << 14),
        ),
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: those before attention are compressed attention's."""
    assert config.compressed is not None
    found = decoder_linears(config, names)
    before = compressed_linears(config.compressed, config.hidden_size, f"{ATTENTION}qkv_proj.")
    at = [each.name for each in found].index("qkv_proj")
    return [*found[:at], *before, *found[at + 1 :]]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, the vectors of compressed attention, and scales and shifts of the residual stream."""
    assert config.compressed is not None
    D, L = config.hidden_size, config.num_hidden_layers
    found = decoder_norms(config, names) + compressed_norms(config.compressed, ATTENTION, f"{ATTENTION}qkv_proj.")
    ends = {"scale": "input_hidden_states_scale", "shift": "input_hidden_states_bias"}
    found += (Norm(f"embed_{end}", f"model.{source}", D, None) for end, source in ends.items())
    return found + [
        Norm(f"{branch}_{end}", f"{LAYER}post_{branch}_residual_scale.{source}", D, L)
        for branch in ("attention", "mlp")
        for end, source in SCALES.items()
    ]


ZAYA = Family(
    "ZayaForCausalLM",
    "zaya",
    "ZAYA1-8B",
    "compressed attention (CCA), one expert or none, routers with an MLP, scales of the residual stream",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    partial_rotary=True,
    names={"intermediate_size": "moe_intermediate_size"},
    prepared=prepared,
)
