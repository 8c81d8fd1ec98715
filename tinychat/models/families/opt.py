"""OPT: layer norms, biases, an MLP of ReLU without gates, and a learned vector for each position.

The size of 350 M norms the residual stream behind attention and MLP, not their inputs. Its embedding is of half the
stream's width: one linear projects it to the stream, another one back for the logits. Both are multiplied into
embedding and output matrix while the checkpoint is read. (Zhang et al., 2022, https://arxiv.org/abs/2205.01068;
github.com/huggingface/transformers, models/opt.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears, decoder_norms, layer_norms
from tinychat.models.family import Family
from tinychat.models.tensors import POSITIONS, Linear, Norm, Table, product

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
# Norms of layers by the name that they have behind attention and MLP.
AFTER = {"input_layernorm": "post_self_attn_layernorm", "post_attention_layernorm": "post_mlp_layernorm"}
# The linears of ids, and what the embedding is times for each.
PROJECTIONS = {"embed_tokens": f"{MODEL}project_in.T", "lm_head": f"{MODEL}project_out"}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases, or none; embedding and output matrix become two where they are projected."""
    values.require(layer_norm_elementwise_affine=True, _remove_final_layer_norm=False)
    if values.optional_integer("word_embed_proj_dim", 1, 1 << 20) not in (None, config.hidden_size):
        values.require(tie_word_embeddings=True)
        config = replace(config, tie_word_embeddings=False, projected_embedding=True)
    bias = values.flag("enable_bias", True)
    config = replace(config, layer_norm=True, gated=False, learned_positions=True, qkv_bias=bias, o_bias=bias)
    config = replace(config, mlp_bias=bias, rotary_dims=(0,) * config.num_hidden_layers)
    return replace(config, stream_norms=not values.flag("do_layer_norm_before", True))


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers."""
    found = decoder_linears(config, names)
    if not config.projected_embedding:
        return found
    return [
        replace(each, sources=(product(names.embed, PROJECTIONS[each.name]),)) if each.name in PROJECTIONS else each
        for each in found
    ]


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms; behind those of the stream there is no last one."""
    found = decoder_norms(config, names)
    if not config.stream_norms:
        return found
    return [replace(each, name=AFTER[each.name]) for each in found if each.name in AFTER]


def tables(config: ModelConfig) -> list[Table]:
    """List the vectors of the positions."""
    rows, columns = config.max_position_embeddings, config.hidden_size
    return [Table(POSITIONS, f"{MODEL}embed_positions", rows, columns, OFFSET)]


OPT = Family(
    "OPTForCausalLM",
    "opt",
    "OPT",
    "learned positions, MLP of ReLU without gates, norms of the residual stream",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    norms,
    tables,
    names=NAMES,
)
