"""OPT: layer norms, biases, an MLP of ReLU without gates, and a learned vector for each position.

(Zhang et al., 2022, https://arxiv.org/abs/2205.01068; github.com/huggingface/transformers, models/opt.) The size of
350 M, which norms after attention and MLP and projects its embeddings, is not supported.
"""

from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, layer_norms
from tinychat.models.family import Family
from tinychat.models.tensors import Table

MODEL = "model.decoder."
LAYER = f"{MODEL}layers.{{}}."
# Vectors before that of the first position.
OFFSET = 2
DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "activation_function": "relu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "do_layer_norm_before": True,
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
}
NAMES = {"intermediate_size": "ffn_dim", "rms_norm_eps": "layer_norm_eps", "hidden_act": "activation_function"}
TENSORS = TensorNames(
    embed=f"{MODEL}embed_tokens",
    qkv=(f"{LAYER}self_attn.q_proj", f"{LAYER}self_attn.k_proj", f"{LAYER}self_attn.v_proj"),
    o=f"{LAYER}self_attn.out_proj",
    gate_up=(f"{LAYER}fc1",),
    down=f"{LAYER}fc2",
    norms=layer_norms(f"{LAYER}self_attn_layer_norm", f"{LAYER}final_layer_norm", f"{MODEL}final_layer_norm"),
    norm_bias=True,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none."""
    values.require(do_layer_norm_before=True, layer_norm_elementwise_affine=True, _remove_final_layer_norm=False)
    if values.optional_integer("word_embed_proj_dim", 1, 1 << 20) not in (None, config.hidden_size):
        raise UnsupportedModelError(f"{values.source}: word_embed_proj_dim beside another hidden_size is not supported")
    bias = values.flag("enable_bias", True)
    config = replace(config, layer_norm=True, gated=False, learned_positions=True, qkv_bias=bias, o_bias=bias)
    return replace(config, mlp_bias=bias, rotary_dims=(0,) * config.num_hidden_layers)


def tables(config: ModelConfig) -> list[Table]:
    """List the vectors of the positions."""
    rows, columns = config.max_position_embeddings, config.hidden_size
    return [Table("embed_positions", f"{MODEL}embed_positions", rows, columns, OFFSET)]


OPT = Family(
    "OPTForCausalLM",
    "opt",
    "OPT (all but 350M)",
    "learned positions, MLP of ReLU without gates",
    DEFAULTS,
    read,
    TENSORS,
    tables=tables,
    names=NAMES,
)
