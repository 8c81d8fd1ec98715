"""Granite 3 and 4 (dense), and MiniCPM 1 and 2: Llama's layers, with multipliers.

Embeddings are multiplied, and so are the outputs of attention and MLP; logits are divided. Granite's files have the
multipliers; MiniCPM derives them from sizes, so that small models tell how to train large ones (IBM, 2024,
https://github.com/ibm-granite/granite-3.0-language-models; Hu et al., 2024, https://arxiv.org/abs/2404.06395;
github.com/huggingface/transformers, models/granite; github.com/OpenBMB/MiniCPM).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import llama
from tinychat.models.family import Family

MOST = 1e6  # of any multiplier


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Multipliers and biases are those of the file; scores are multiplied as well, instead of divided by sqrt(d)."""
    return replace(
        llama.read_llama(values, config),
        embedding_multiplier=values.number("embedding_multiplier", 1 / MOST, MOST),
        residual_multiplier=values.number("residual_multiplier", 1 / MOST, MOST),
        attention_scale=values.number("attention_multiplier", 1 / MOST, MOST),
        logits_multiplier=1 / values.number("logits_scaling", 1 / MOST, MOST),
    )


def read_minicpm(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The residual's multiplier follows from the number of layers, that of logits from the width."""
    return replace(
        llama.read_llama(values, config),
        mlp_bias=False,
        embedding_multiplier=values.number("scale_emb", 1 / MOST, MOST),
        residual_multiplier=values.number("scale_depth", 1 / MOST, MOST) / config.num_hidden_layers**0.5,
        logits_multiplier=values.number("dim_model_base", 1, MOST) / config.hidden_size,
    )


DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_MINICPM = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "scale_emb": 1.0,
    "scale_depth": 1.0,
    "dim_model_base": 1,
}

GRANITE = Family(
    "GraniteForCausalLM",
    "granite",
    "Granite 3, 4 (dense)",
    "multipliers of embedding, residual, scores, logits",
    DEFAULTS,
    read,
)
MINICPM = Family(
    "MiniCPMForCausalLM",
    "minicpm",
    "MiniCPM 1, 2",
    "multipliers of embedding, residual, logits",
    _MINICPM,
    read_minicpm,
)
