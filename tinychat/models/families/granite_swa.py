"""Granite Swash, dense and with experts: Granite's layers and multipliers, with windows and sinks.

Each head has a sink, a score that takes weight from the keys: transformers multiplies what attention gives by
``sigmoid(log(sum(exp(scores))) - sink)``, which is the same. All layers but every fourth, from the first on, have a
window. Layers may have bases of the rotation of their own, or not rotate (IBM, 2026;
github.com/huggingface/transformers, models/granite_swa and granitemoe_swa).
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ExpertNames, TensorNames
from tinychat.models.experts import with_num_experts
from tinychat.models.families import granite, granite_moe
from tinychat.models.family import Family

EXPERT = f"{granite_moe.SPARSE}experts.{{}}."
MOE_TENSORS = TensorNames(
    experts=ExpertNames((f"{granite_moe.SPARSE}router",), (f"{EXPERT}gate_up_proj",), f"{EXPERT}down_proj")
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read the dense models."""
    return with_windows(values, granite.read(values, config))


def read_moe(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Read those with experts."""
    return with_windows(values, granite_moe.read_shared(values, config))


def with_windows(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration with windows and sinks, and the bases of layers: one of each kind at most."""
    L = config.num_hidden_layers
    windows, thetas = read_windows(values, L, lambda layer: layer % 4 != 0), (config.rope_theta,) * L
    if values.get("layer_rope_theta") is not None:
        thetas = values.numbers("layer_rope_theta", L, 0.0, 1e30)
        if any(0 < theta < 1.001 for theta in thetas):
            raise values.error("layer_rope_theta", "numbers that are 0 or more than 1")
    full, sliding = ({t for t, window in zip(thetas, windows) if t and bool(window) == kind} for kind in (False, True))
    theta = max(full or sliding or {config.rope_theta})
    separate = max(sliding or {theta}) != theta
    if len(full) > 1 or len(sliding) > 1 or (separate and config.rope_scaling):
        raise UnsupportedModelError(
            f"{values.source}: layer_rope_theta is not supported with several bases for layers of one kind, or with a "
            "rope scaling"
        )
    return replace(
        config,
        rope_scaling=config.rope_scaling if any(thetas) else None,
        sliding_windows=windows,
        sinks=True,
        rope_theta=theta,
        sliding_rope_theta=max(sliding) if separate else None,
        rotary_dims=tuple(config.rotary_dim if base else 0 for base in thetas),
    )


_WINDOWS = {"sliding_window": 128}
GRANITE_SWA = Family(
    "GraniteSWAForCausalLM",
    "granite_swa",
    "Granite Swash (2B)",
    "attention sinks, sliding window and base of the rotation by layer, multipliers as Granite",
    {
        **granite.DEFAULTS,
        **_WINDOWS,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    read,
)
GRANITE_MOE_SWA = Family(
    "GraniteMoeSWAForCausalLM",
    "granitemoe_swa",
    "Granite Swash with experts (3B-A600M)",
    "the same with experts, and perhaps a shared one",
    {**granite_moe.DEFAULTS, **_WINDOWS, "shared_intermediate_size": 0},
    read_moe,
    MOE_TENSORS,
    granite_moe.linears,
    prepared=with_num_experts,
)
