"""MiniCPM 3: MiniCPM's multipliers, with the latent attention of DeepSeek-V2; channels are rotated in halves.

Values are as wide as heads would be without latents, unless the file says otherwise (Hu et al., 2024,
https://arxiv.org/abs/2404.06395; github.com/huggingface/transformers, models/minicpm3).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import deepseek
from tinychat.models.families.granite import MOST
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 40,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Multipliers without a number are 1."""
    depth = config.num_hidden_layers**0.5
    return replace(
        deepseek.with_latents(values, config, neighbours=False),
        mlp_bias=values.flag("mlp_bias", False),
        embedding_multiplier=values.number("scale_emb", 1 / MOST, MOST),
        residual_multiplier=(values.optional_number("scale_depth", 1 / MOST, MOST) or depth) / depth,
        logits_multiplier=(values.optional_number("dim_model_base", 1, MOST) or config.hidden_size)
        / config.hidden_size,
    )


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with the width of values."""
    width, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if raw.get("v_head_dim") is not None or type(width) is not int or type(heads) is not int or heads < 1:
        return raw
    return {**raw, "v_head_dim": width // heads}


MINICPM3 = Family(
    "MiniCPM3ForCausalLM",
    "minicpm3",
    "MiniCPM 3",
    "latent attention (MLA), multipliers of embedding, residual, logits",
    DEFAULTS,
    read,
    linears=deepseek.linears,
    norms=deepseek.norms,
    names={"head_dim": "qk_rope_head_dim"},
    prepared=prepared,
)
