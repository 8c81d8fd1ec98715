"""Ministral 3: Mistral's layers, with scores that grow with the position beyond the training length.

Queries at position p are multiplied by ``1 + beta * ln(1 + floor(p / original_max_position_embeddings))``, so that many
keys do not blur attention (as in Llama 4; github.com/huggingface/transformers, models/ministral3).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import MAX_POSITIONS

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Queries grow with the position."""
    return with_growing_queries(values, llama.read_mistral(values, config))


def with_growing_queries(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration with the growth of queries, which is in the section of the rotary embedding."""
    section = values.optional_section("rope_parameters") or ConfigValues({}, values.source)
    length = section.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    return replace(
        config,
        temperature_beta=section.number("llama_4_scaling_beta", 0.0, 1e3),
        temperature_length=length,
    )


MINISTRAL3 = Family(
    "Ministral3ForCausalLM",
    "ministral3",
    "Ministral 3 (text)",
    "yarn, scores that grow with the position",
    DEFAULTS,
    read,
)
