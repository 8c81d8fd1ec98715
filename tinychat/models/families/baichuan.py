"""Baichuan 1 and 2: Llama's layers, with one tensor for queries, keys and values.

The sizes of 7B rotate; those of 13B, whose files have no ``max_position_embeddings``, have scores that fall with the
distance of the key (ALiBi). Baichuan 2 brings each row of the output matrix to length 1 (Baichuan Inc., 2023,
https://arxiv.org/abs/2309.10305; the code of huggingface.co/baichuan-inc).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import bloom, llama
from tinychat.models.family import Family
from tinychat.models.tensors import Linear

DEFAULTS = {"rms_norm_eps": 1e-6, "model_max_length": 4096}
NAMES = {"max_position_embeddings": "model_max_length"}
# Of Baichuan 2, whose larger size says nothing else that Baichuan 1 does not.
SECOND_VOCAB_SIZE = 125696


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give the length its name where a file has only the usual one."""
    length = raw.get("max_position_embeddings")
    return raw if length is None or raw.get("model_max_length") is not None else {**raw, "model_max_length": length}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Layers rotate, or scores fall."""
    is_second = values.get("z_loss_weight") is not None or config.vocab_size == SECOND_VOCAB_SIZE
    config = replace(config, unit_outputs=is_second)
    if "max_position_embeddings" in values.keys():
        return config
    slopes = bloom.slopes_of(config.num_attention_heads)
    return replace(config, alibi_slopes=slopes, rotary_dims=(0,) * config.num_hidden_layers)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    fused = f"{llama.ATTENTION}W_pack"
    changed = {
        "qkv_proj": lambda linear: replace(linear, sources=(fused,), rows=(sum(linear.rows),)),
        "lm_head": lambda linear: replace(linear, unit_rows=config.unit_outputs),
    }
    return [changed.get(linear.name, lambda same: same)(linear) for linear in llama.linears(config)]


_BAICHUAN = Family(
    "BaichuanForCausalLM",
    "baichuan",
    "Baichuan 1 13B, Baichuan 2",
    "fused projection, rotation or ALiBi, output rows of length 1",
    DEFAULTS,
    read,
    linears,
    llama.norms,
    names=NAMES,
    prepared=prepared,
)
FAMILIES = (
    _BAICHUAN,
    replace(
        _BAICHUAN, architecture="BaiChuanForCausalLM", models="Baichuan 1 7B", covered="fused projection, rotation"
    ),
)
