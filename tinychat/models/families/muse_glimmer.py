"""Muse Glimmer (text): norms before and after attention and MLP, gates of attention, norms without gains, a logit cap.

Embeddings are normed, and so are queries and keys of each head. Layers have a window, but every fourth, counted from
the last, which does not rotate. The norms behind attention and MLP have an epsilon of their own (Meta, 2026;
github.com/huggingface/transformers, models/muse_glimmer).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_windows, with_gates
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_norms
from tinychat.models.families import afmoe, gemma
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

MOST = 1e6  # of multipliers
TENSORS = TensorNames(
    qkv=afmoe.TENSORS.qkv,
    norms={**gemma.FOUR_NORMS.norms, **dict.fromkeys(("embed_norm", "q_norm", "k_norm"), "")},
    norm_offset=1.0,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """A factor of queries behind their norm is one of scores."""
    values.require(attention_bias=False)
    L = config.num_hidden_layers
    windows = read_windows(values, L, lambda layer: (L - 1 - layer) % 4 != 0)
    return replace(
        with_gates(values, config),
        qk_norm="head",
        sliding_windows=windows,
        rotary_dims=tuple(config.rotary_dim if theta else 0 for theta in _bases(values, config)),
        attention_scale=config.attention_scale * values.number("qk_scale_factor", 1 / MOST, MOST),
        logits_multiplier=values.number("output_multiplier", 1 / MOST, MOST),
        logits_softcap=values.number("final_logit_softcapping", 1 / MOST, MOST),
        post_norm_eps=values.number("post_norm_eps", 1e-30, 1.0),
    )


def _bases(values: ConfigValues, config: ModelConfig) -> tuple[float, ...]:
    """Read the base of each layer's rotation; 0 where a layer does not rotate."""
    L, theta = config.num_hidden_layers, config.rope_theta
    if values.get("layer_rope_theta") is None:
        return tuple(theta if (L - 1 - layer) % 4 else 0.0 for layer in range(L))
    found = values.numbers("layer_rope_theta", L, 0.0, 1e30)
    # transformers takes the model's base in the place of any other.
    if {*found} - {0.0, theta}:
        raise UnsupportedModelError(f"{values.source}: layer_rope_theta other than 0 or {theta:g} is not supported")
    return found


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms; gains of the last one have no offset."""
    return [replace(each, offset=0.0) if each.name == "norm" else each for each in decoder_norms(config, names)]


MUSE_GLIMMER = Family(
    "MuseGlimmerForCausalLM",
    "muse_glimmer_text",
    "Muse Glimmer (text)",
    "norms before and after, gates of attention, q/k norm, sliding window and rotation by layer, logit cap",
    {
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": 1e-8,
    },
    read,
    TENSORS,
    norms=norms,
    names={"hidden_act": "hidden_activation"},
)
