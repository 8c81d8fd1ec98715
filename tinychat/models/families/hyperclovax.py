"""HyperCLOVA X (SEED Think): Granite's layers with norms after attention and MLP, too.

Multipliers are those of Granite, but logits are multiplied, not divided, and the residual's multiplies what the norms
give (NAVER Cloud, 2025, https://arxiv.org/abs/2506.22403; github.com/huggingface/transformers, models/hyperclovax).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, LLAMA_NORMS, TensorNames
from tinychat.models.families import granite, llama
from tinychat.models.family import Family

TENSORS = TensorNames(
    norms={
        **LLAMA_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_norm1",
        "post_mlp_layernorm": f"{LAYER}post_norm2",
    }
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Scores are divided by sqrt(d), unless the file says by what they are multiplied."""
    values.require(use_post_norm=True)
    scale = values.optional_number("attention_multiplier", 1 / granite.MOST, granite.MOST)
    return replace(
        llama.read_llama(values, config),
        embedding_multiplier=values.number("embedding_multiplier", 1 / granite.MOST, granite.MOST),
        residual_multiplier=values.number("residual_multiplier", 1 / granite.MOST, granite.MOST),
        attention_scale=scale or config.attention_scale,
        logits_multiplier=values.number("logits_scaling", 1 / granite.MOST, granite.MOST),
    )


HYPERCLOVAX = Family(
    "HyperCLOVAXForCausalLM",
    "hyperclovax",
    "HyperCLOVA X SEED Think (14B)",
    "norms before and after, multipliers of embedding, residual, scores, logits",
    {key: value for key, value in granite.DEFAULTS.items() if key != "attention_multiplier"} | {"use_post_norm": True},
    read,
    TENSORS,
)
