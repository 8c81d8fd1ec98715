"""GPT-NeoX, Pythia, Dolly 2 and StableLM alpha: layer norms, biases, an MLP without gates beside attention.

Queries, keys and values of a head stand together; a quarter of each head is rotated. The MLP has a norm of its own
(Black et al., 2022, https://arxiv.org/abs/2204.06745; github.com/huggingface/transformers, models/gpt_neox).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, grouped_rows, layer_norms
from tinychat.models.family import Family

LAYER = "gpt_neox.layers.{}."
DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "rotary_pct": 0.25,
    "attention_bias": True,
    "use_parallel_residual": True,
}
NAMES = {
    "rms_norm_eps": "layer_norm_eps",
    "partial_rotary_factor": "rotary_pct",
    "rope_theta": "rotary_emb_base",
}
TENSORS = TensorNames(
    embed="gpt_neox.embed_in",
    qkv=(f"{LAYER}attention.query_key_value",),
    qkv_order=grouped_rows,
    o=f"{LAYER}attention.dense",
    gate_up=(f"{LAYER}mlp.dense_h_to_4h",),
    down=f"{LAYER}mlp.dense_4h_to_h",
    norms=layer_norms(f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm", "gpt_neox.final_layer_norm"),
    norm_bias=True,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases of attention, and an MLP beside or after it, are those of the file."""
    bias = values.flag("attention_bias", True)
    config = replace(config, layer_norm=True, gated=False, parallel=values.flag("use_parallel_residual", True))
    return replace(config, qkv_bias=bias, o_bias=bias, mlp_bias=True)


GPT_NEOX = Family(
    "GPTNeoXForCausalLM",
    "gpt_neox",
    "GPT-NeoX, Pythia, Dolly 2",
    "MLP without gates beside attention, a part of each head rotated",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names=NAMES,
)
