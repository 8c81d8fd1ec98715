"""InternLM 2 and 2.5: Llama's layers by other names; queries of a group stand with their keys and values.

(Cai et al., 2024, https://arxiv.org/abs/2403.17297; the code of huggingface.co/internlm.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, split_order

LAYER = "model.layers.{}."
ATTENTION, MLP = f"{LAYER}attention.", f"{LAYER}feed_forward."
DEFAULTS = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "bias": True}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Attention has biases if the file says so, the MLP has none."""
    bias = values.flag("bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    order, gate_up = (split_order(G, H // G, d),), (f"{MLP}w1", f"{MLP}w3")
    found = [
        Linear("embed_tokens", ("model.tok_embeddings",), (V,), D, None),
        Linear("qkv_proj", (f"{ATTENTION}wqkv",), ((H + 2 * G) * d,), D, L, config.qkv_bias, order=order),
        Linear("o_proj", (f"{ATTENTION}wo",), (D,), H * d, L, config.o_bias),
        Linear("gate_up_proj", gate_up, (F, F), D, L),
        Linear("down_proj", (f"{MLP}w2",), (D,), F, L),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("output",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}attention_norm", D, L),
        Norm("post_attention_layernorm", f"{LAYER}ffn_norm", D, L),
        Norm("norm", "model.norm", D, None),
    ]


FAMILIES = (
    Family(
        "InternLM2ForCausalLM",
        "internlm2",
        "InternLM 2, 2.5",
        "queries, keys and values in groups, dynamic RoPE",
        DEFAULTS,
        read,
        linears,
        norms,
    ),
)
