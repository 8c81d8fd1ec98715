"""BitNet b1.58: Llama's layers with two more norms, trained with weights of -1, 0 and 1.

What attention gives is normed before its last linear, and so is what the gates of an MLP, of squared ReLU, let through
(Ma et al., 2025, https://arxiv.org/abs/2504.12285; github.com/huggingface/transformers, models/bitnet).
How ternary weights are stored is another matter, and not of this family alone: `tinychat.checkpoint.ternary`.
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, LLAMA_NORMS, MLP, TensorNames, decoder_norms
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

INNER_NORM = "ffn_sub_norm"
TENSORS = TensorNames(
    norms={
        **LLAMA_NORMS,
        "attn_sub_norm": f"{ATTENTION}attn_sub_norm",
        INNER_NORM: f"{MLP}{INNER_NORM}",
    }
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Heads are together as wide as the residual stream, whose norm what attention gives passes."""
    if config.num_attention_heads * config.head_dim != config.hidden_size:
        raise values.error("head_dim", f"hidden_size by num_attention_heads ({config.num_attention_heads})")
    return replace(with_attention_bias(values, config), sub_norms=True)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, of which one is as wide as an MLP."""
    sizes = {INNER_NORM: config.intermediate_size}
    return [replace(each, size=sizes.get(each.name, each.size)) for each in decoder_norms(config, names)]


DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "hidden_act": "relu2",
    "num_key_value_heads": 5,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
}

BITNET = Family(
    "BitNetForCausalLM",
    "bitnet",
    "BitNet b1.58 2B4T",
    "norms inside of attention and MLP, squared ReLU, ternary weights",
    DEFAULTS,
    read,
    TENSORS,
    norms=norms,
)
