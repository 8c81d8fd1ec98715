"""InternLM 2 and 2.5: Llama's layers by other names; queries of a group stand with their keys and values.

(Cai et al., 2024, https://arxiv.org/abs/2403.17297; the code of huggingface.co/internlm.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import LAYER, TensorNames, grouped_rows, layer_norms
from tinychat.models.family import Family

ATTENTION, MLP = f"{LAYER}attention.", f"{LAYER}feed_forward."
DEFAULTS = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "bias": True}
TENSORS = TensorNames(
    embed="model.tok_embeddings",
    qkv=(f"{ATTENTION}wqkv",),
    qkv_order=grouped_rows,
    o=f"{ATTENTION}wo",
    gate_up=(f"{MLP}w1", f"{MLP}w3"),
    down=f"{MLP}w2",
    lm_head="output",
    norms=layer_norms(f"{LAYER}attention_norm", f"{LAYER}ffn_norm", "model.norm"),
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Attention has biases if the file sets them, the MLP has none."""
    bias = values.flag("bias", False)
    return replace(config, qkv_bias=bias, o_bias=bias)


INTERNLM2 = Family(
    "InternLM2ForCausalLM",
    "internlm2",
    "InternLM 2, 2.5",
    "queries, keys and values in groups, dynamic RoPE",
    DEFAULTS,
    read,
    TENSORS,
)
