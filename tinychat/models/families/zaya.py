"""ZAYA1: attention that is compressed by convolutions (CCA), and one expert of each layer for a token, or none.

Routers are MLPs, whose vector is carried from layer to layer. Embedding, branches and residual stream have a scale
and a shift for each channel (Zyphra, 2026, https://arxiv.org/abs/2605.05365; github.com/huggingface/transformers,
models/zaya).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.compressed import compressed_heads, compressed_linears, compressed_norms
from tinychat.models.config import ModelConfig, read_layer_types, read_window
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import (
    ATTENTION,
    LAYER,
    MLP,
    ExpertNames,
    RouterMlpNames,
    TensorNames,
    decoder_linears,
    decoder_norms,
)
from tinychat.models.experts import read_experts
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_rotary_dim
from tinychat.models.tensors import Linear, Norm

PLAIN, SLIDING = "hybrid", "hybrid_sliding"  # kinds of layers
ROUTER_MLP = f"{MLP}gate.router_mlp."
TENSORS = TensorNames(
    experts=ExpertNames(
        (f"{ROUTER_MLP}out_proj",),
        bias=f"{MLP}gate.balancing_biases",
        router_mlp=RouterMlpNames(
            in_proj=f"{MLP}gate.down_proj",
            fc1=f"{ROUTER_MLP}fc1",
            fc2=f"{ROUTER_MLP}fc2",
            norm=f"{ROUTER_MLP}norm",
            carry=f"{MLP}gate.router_states_scale",
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
# Channels of a head are a multiple of it: half of the values of one head are whole vectors.
HEAD_MULTIPLE = 32
_ROPE = {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}
_ROPES = {PLAIN: _ROPE, SLIDING: _ROPE | {"rope_theta": 10000.0}}
DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 2048,
    "router_hidden_size": 256,
    "cca_time0": 2,
    "cca_time1": 2,
}


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the rotary embedding of each kind of layer under the kind's name."""
    both = raw.get("rope_parameters") or _ROPES
    ropes = both if isinstance(both, Mapping) else {}
    return {**raw, "rope_parameters": None, **{kind: ropes.get(kind) for kind in (PLAIN, SLIDING)}}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """No layer has a window, unless the file names those that have one."""
    values.require(attention_bias=False, lm_head_bias=False)
    for key, only in {"cca_time0": 2, "cca_time1": 2, "num_experts_per_tok": 1}.items():
        if values.integer(key, 1, 64) != only:
            raise UnsupportedModelError(f"{values.source}: {key} other than {only} is not supported")
    L, d = config.num_hidden_layers, config.head_dim
    if d % HEAD_MULTIPLE:
        raise values.error("head_dim", f"a multiple of {HEAD_MULTIPLE}")
    kinds = read_layer_types(values, L, (PLAIN, SLIDING)) or [PLAIN] * L
    window = read_window(values)
    if SLIDING in kinds and window is None:
        raise values.error("sliding_window", "a window for layer_types")
    ropes = {kind: _read_rope(values, kind, d) for kind in {*kinds}}
    experts = read_experts(values, "moe_intermediate_size", range(L))
    return replace(
        config,
        compressed=compressed_heads(L, config.num_attention_heads, config.num_key_value_heads, d),
        sliding_windows=tuple(window or 0 if kind == SLIDING else 0 for kind in kinds),
        rotary_dims=tuple(ropes[kind][1] for kind in kinds),
        rope_theta=ropes[PLAIN][0] if PLAIN in ropes else config.rope_theta,
        sliding_rope_theta=ropes[SLIDING][0] if SLIDING in ropes else None,
        residual_scales=True,
        experts=replace(
            experts,
            norm_topk_prob=False,
            biased=True,
            can_skip=True,
            router_size=values.integer("router_hidden_size", 1, 1 << 14),
        ),
    )


def _read_rope(values: ConfigValues, kind: str, head_dim: int) -> tuple[float, int]:
    """Read the base, and the rotated channels of each head, of a kind of layer."""
    section = values.optional_section(kind)
    if section is None:
        raise values.error("rope_parameters", f"an object with {kind}")
    if (section.optional_text("rope_type") or "default") != "default":
        raise UnsupportedModelError(f"{section.source}: rope types other than default are not supported")
    return section.number("rope_theta", 1.001, 1e30), read_rotary_dim(section, head_dim)


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
