"""Baichuan 1 and 2: Llama's layers, with one tensor for queries, keys and values.

The sizes of 7B rotate; those of 13B, whose files have no ``max_position_embeddings``, have scores that fall with the
distance of the key (ALiBi). Baichuan 2 brings each row of the output matrix to length 1 (Baichuan Inc., 2023,
https://arxiv.org/abs/2309.10305; the code of huggingface.co/baichuan-inc).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, TensorNames
from tinychat.models.families.bloom import slopes_of
from tinychat.models.family import Family

DEFAULTS = {"rms_norm_eps": 1e-6, "model_max_length": 4096}
TENSORS = TensorNames(qkv=(f"{ATTENTION}W_pack",))
# Of Baichuan 2, whose larger size differs from Baichuan 1 in nothing else.
SECOND_VOCAB_SIZE = 125696


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give the length its name where a file has only the common one."""
    length = raw.get("max_position_embeddings")
    return raw if length is None or raw.get("model_max_length") is not None else {**raw, "model_max_length": length}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers rotate, or scores fall."""
    is_second = values.get("z_loss_weight") is not None or config.vocab_size == SECOND_VOCAB_SIZE
    config = replace(config, unit_outputs=is_second)
    if "max_position_embeddings" in values.keys():
        return config
    slopes = slopes_of(config.num_attention_heads)
    return replace(config, alibi_slopes=slopes, rotary_dims=(0,) * config.num_hidden_layers)


BAICHUAN = Family(
    "BaichuanForCausalLM",
    "baichuan",
    "Baichuan 1 13B, Baichuan 2",
    "fused projection, rotation or ALiBi, output rows of length 1",
    DEFAULTS,
    read,
    TENSORS,
    names={"max_position_embeddings": "model_max_length"},
    prepared=prepared,
)
OLDER_BAICHUAN = replace(
    BAICHUAN, architecture="BaiChuanForCausalLM", models="Baichuan 1 7B", covered="fused projection, rotation"
)
