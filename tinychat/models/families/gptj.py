"""GPT-J: attention and an MLP without gates beside each other, behind one layer norm.

Neighbouring channels are rotated together, the first ones of each head; rows of queries and keys are reordered for that
(Wang and Komatsuzaki, 2021, https://github.com/kingoflolz/mesh-transformer-jax; github.com/huggingface/transformers,
models/gptj).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, layer_norms, neighbours_rows
from tinychat.models.families import gpt2
from tinychat.models.family import Family

LAYER = "transformer.h.{}."
DEFAULTS = {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_positions": 2048, "rotary_dim": 64}
TENSORS = TensorNames(
    embed="transformer.wte",
    qkv=(f"{LAYER}attn.q_proj", f"{LAYER}attn.k_proj", f"{LAYER}attn.v_proj"),
    qkv_order=neighbours_rows,
    o=f"{LAYER}attn.out_proj",
    gate_up=(f"{LAYER}mlp.fc_in",),
    down=f"{LAYER}mlp.fc_out",
    norms=layer_norms(f"{LAYER}ln_1", f"{LAYER}ln_1", "transformer.ln_f"),
    norm_bias=True,
    lm_head_bias=True,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The MLP and the output matrix have biases, attention has none."""
    values.require(tie_word_embeddings=False)
    rotary_dim = values.integer("rotary_dim", 2, config.head_dim)
    if rotary_dim % 2:
        raise values.error("rotary_dim", "an even number")
    config = replace(config, layer_norm=True, gated=False, parallel=True, mlp_bias=True)
    return replace(config, rotary_dims=(rotary_dim,) * config.num_hidden_layers)


GPTJ = Family(
    "GPTJForCausalLM",
    "gptj",
    "GPT-J",
    "MLP without gates beside attention, a part of each head rotated, by neighbours",
    DEFAULTS,
    read,
    TENSORS,
    names=gpt2.NAMES,
    prepared=gpt2.prepared,
)
