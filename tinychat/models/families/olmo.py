"""OLMo 1: Llama's layers with layer norms that have neither gains nor biases.

(Groeneveld et al., 2024, https://arxiv.org/abs/2402.00838; github.com/huggingface/transformers, models/olmo.)
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, with_attention_bias
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.families import nanochat
from tinychat.models.family import Family


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Norms have an epsilon that no file names; a bound of queries, keys and values is refused."""
    values.require(clip_qkv=None)
    return replace(with_attention_bias(values, config), layer_norm=True, rms_norm_eps=1e-5)


OLMO = Family(
    "OlmoForCausalLM",
    "olmo",
    "OLMo 1 (1B, 7B; not those of 2024-04 and later, which bound queries, keys and values)",
    "layer norms without gains",
    {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048},
    read,
    TensorNames(norms=dict.fromkeys((*nanochat.OF_LAYERS, "norm"), "")),
    norms=nanochat.norms,
)
