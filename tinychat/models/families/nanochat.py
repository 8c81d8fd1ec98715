"""nanochat: Llama's layers with norms that have no gains, and MLPs of squared ReLU without gates.

The embeddings are normed too, and so are queries and keys, which are rotated the other way round: as if the halves of
each head were swapped (Karpathy, 2025, https://github.com/karpathy/nanochat; github.com/huggingface/transformers,
models/nanochat).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, TensorNames, decoder_norms
from tinychat.models.family import Family
from tinychat.models.tensors import Norm, Order

OF_LAYERS = ("input_layernorm", "post_attention_layernorm")


def swapped_rows(config: ModelConfig) -> Order:
    """Return the order of rows of queries and keys in which the second half of each head comes first."""

    def swapped(heads: int) -> NDArray[np.intp]:
        return np.arange(heads * config.head_dim).reshape(heads, 2, -1)[:, ::-1].reshape(-1)

    return swapped(config.num_attention_heads), swapped(config.num_key_value_heads), None


TENSORS = TensorNames(
    gate_up=(f"{MLP}fc1",),
    down=f"{MLP}fc2",
    norms=dict.fromkeys(("embed_norm", *OF_LAYERS, "norm", "q_norm", "k_norm"), ""),
    qkv_order=swapped_rows,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Logits are capped."""
    cap = values.optional_number("final_logit_softcapping", 1e-3, 1e6)
    return replace(with_attention_bias(values, config), gated=False, qk_norm="head", logits_softcap=cap)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms; no name says which are of layers."""
    L = config.num_hidden_layers
    return [replace(each, layers=L) if each.name in OF_LAYERS else each for each in decoder_norms(config, names)]


NANOCHAT = Family(
    "NanoChatForCausalLM",
    "nanochat",
    "nanochat",
    "norms without gains, q/k norm, MLP of squared ReLU without gates, logit cap",
    {
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "hidden_act": "relu2",
        "final_logit_softcapping": 15.0,
    },
    read,
    TENSORS,
    norms=norms,
)
