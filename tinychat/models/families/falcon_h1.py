"""Falcon-H1: attention and Mamba-2 beside each other in each layer, and multipliers of most vectors.

All multipliers are in weights, and in the last norm (Technology Innovation Institute, 2025,
https://arxiv.org/abs/2507.22448; github.com/huggingface/transformers, models/falcon_h1).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears
from tinychat.models.families import bamba, llama
from tinychat.models.family import Family
from tinychat.models.mamba import DEFAULTS, STEPS, read_mamba
from tinychat.models.tensors import Linear, rows_of

MOST = 1e6  # of any multiplier


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the size of a head of states, where it is "auto", and lists of multipliers."""
    found = {**raw, "mlp_multipliers": raw.get("mlp_multipliers") or [1.0] * 2}
    found["ssm_multipliers"] = raw.get("ssm_multipliers") or [1.0] * 5
    if raw.get("mamba_d_head", "auto") == "auto":
        size, heads = raw.get("mamba_d_ssm", 1024), raw.get("mamba_n_heads", 128)
        if size is None:
            expand, width = raw.get("mamba_expand", 2), raw.get("hidden_size")
            size = expand * width if type(expand) is int and type(width) is int else None
        if type(size) is int and type(heads) is int and heads > 0:
            found["mamba_d_head"] = size // heads
    return found


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has both; attention and MLP may have biases."""
    values.require(projectors_bias=False, mamba_proj_bias=False)
    if config.hidden_act != "silu":
        raise values.error("hidden_act", '"silu"')
    net = read_mamba(values, range(config.num_hidden_layers))
    normed = values.flag("mamba_rms_norm", False)
    if normed:
        values.require(mamba_norm_before_gate=False)

    def number(key: str) -> float:
        return values.number(key, 1 / MOST, MOST)

    if values.flag("attention_bias", False) and number("attention_in_multiplier") != 1:
        raise UnsupportedModelError(f"{values.source}: attention_bias beside attention_in_multiplier is not supported")
    states, attended = number("ssm_in_multiplier"), number("attention_in_multiplier")
    gates, *mixed, steps = (states * each for each in values.numbers("ssm_multipliers", 5, 1 / MOST, MOST))
    gate, down = values.numbers("mlp_multipliers", 2, 1 / MOST, MOST)
    multipliers = {
        "qkv_proj": (attended, attended * number("key_multiplier"), attended),
        "o_proj": (number("attention_out_multiplier"),),
        "mamba_in_proj": (*mixed, gates),
        STEPS: (steps,),
        "mamba_out_proj": (number("ssm_out_multiplier"),),
        "gate_up_proj": (gate, 1.0),
        "down_proj": (down,),
    }
    return replace(
        llama.read_llama(values, config),
        mamba=replace(net, normed=normed, beside_attention=True),
        embedding_multiplier=number("embedding_multiplier"),
        logits_multiplier=number("lm_head_multiplier"),
        linear_multipliers=tuple(multipliers.items()),
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers; values, keys and queries of a state stand apart, for multipliers of their own."""
    net = config.mamba
    assert net is not None
    sizes = net.value_size, net.value_size, net.key_size, net.key_size, net.value_heads
    gates, *mixed, _ = rows_of(f"{names.mamba}in_proj", *sizes)
    rows = net.value_size, net.key_size, net.key_size, net.value_size
    return [
        replace(each, sources=(*mixed, gates), rows=rows) if each.name == "mamba_in_proj" else each
        for each in decoder_linears(config, names)
    ]


FALCON_H1 = Family(
    "FalconH1ForCausalLM",
    "falcon_h1",
    "Falcon-H1 (0.5B to 34B)",
    "attention and Mamba-2 beside each other, multipliers",
    {
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
        "projectors_bias": False,
        "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "key_multiplier": 1.0,
        "attention_out_multiplier": 1.0,
        "attention_in_multiplier": 1.0,
        "ssm_in_multiplier": 1.0,
        "ssm_out_multiplier": 1.0,
    },
    read,
    bamba.TENSORS,
    linears,
    prepared=prepared,
)
