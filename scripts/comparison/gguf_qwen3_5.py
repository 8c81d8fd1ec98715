"""Qwen3.5 in GGUF: numbers and tensors of its Gated DeltaNet layers and gated attention, as llama.cpp has them.

(github.com/ggml-org/llama.cpp: gguf-py/gguf/constants.py has the names.)
"""

from collections.abc import Iterator

import gguf
import numpy as np
from numpy.typing import NDArray

from tinychat.checkpoint.checkpoint import Checkpoint
from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.delta_net import DeltaNet
from tinychat.models.families.qwen3_next import gated_queries

ARCHITECTURE = "qwen35"
# Parts of a layer by their names in the checkpoint.
EVERY_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
DELTA_NET = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
WITHOUT_ENDING, BIAS = "ssm_a", "ssm_dt"


def delta_net_of(config: ModelConfig) -> DeltaNet:
    """Return the Gated DeltaNet layers, where this writer knows how to translate the model.

    Raises
    ------
    UnsupportedModelError
        If it has biases, several heads of values for one of keys, or attention layers at other than equal distances.
    """
    net, count = config.delta_net, config.num_hidden_layers
    interval = config.attention_layers[0] + 1
    regular = list(config.attention_layers) == list(range(interval - 1, count, interval))
    if net is None or config.qkv_bias or net.value_heads != net.key_heads or not regular:
        what = f"{config.architecture} with these layers cannot be compared: take the shape qwen3.5-0.8b"
        raise UnsupportedModelError(what)
    return net


def describe(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Add what this architecture has besides Llama's numbers."""
    net = delta_net_of(config)
    writer.add_ssm_conv_kernel(net.taps)
    writer.add_ssm_state_size(net.key_dim)
    writer.add_ssm_group_count(net.key_heads)
    writer.add_ssm_time_step_rank(net.value_heads)
    writer.add_ssm_inner_size(net.value_size)
    writer.add_full_attention_interval(config.attention_layers[0] + 1)
    # Three axes of positions, which are the same in text.
    pairs = config.rotary_dim // 2
    writer.add_rope_dimension_sections([pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0])


def tensors_of(checkpoint: Checkpoint) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield the name and the values of every tensor."""
    config, read = checkpoint.config, checkpoint.tensors.read
    net = delta_net_of(config)
    yield "token_embd.weight", read("model.embed_tokens.weight")
    yield "output_norm.weight", read("model.norm.weight").astype(np.float32)
    if not config.tie_word_embeddings:
        yield "output.weight", read("lm_head.weight")
    for layer in range(config.num_hidden_layers):
        names = EVERY_LAYER | (DELTA_NET if layer in net.layers else ATTENTION)
        for theirs, ours in names.items():
            values = as_stored(ours, read(f"model.layers.{layer}.{theirs}.weight"), config, net)
            ending = {WITHOUT_ENDING: "", BIAS: ".bias"}.get(ours, ".weight")
            yield f"blk.{layer}.{ours}{ending}", values


def as_stored(name: str, values: NDArray[np.generic], config: ModelConfig, net: DeltaNet) -> NDArray[np.generic]:
    """Return a tensor as the file has it: decays as -exp(A), taps by channel, queries and gates by head."""
    if name == "ssm_a":
        return -np.exp(values.astype(np.float32))
    if name == "ssm_conv1d":
        return values.reshape(net.channels, net.taps).astype(np.float32)
    if name == "attn_q":
        return values[np.argsort(gated_queries(config)[0])]
    return values.astype(np.float32) if values.ndim == 1 else values
