"""Jina Embeddings 2: BERT with gates, whose scores fall with the distance of the key to both sides (ALiBi).

(Günther et al., 2023, https://arxiv.org/abs/2310.19923; the code of huggingface.co/jinaai/jina-bert-implementation).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_linears
from tinychat.models.families.bert import (
    BERT,
    DEFAULTS,
    KINDS,
    NAMES,
    bert_tensors,
    encoder,
    require_texts,
    without_gate_bias,
)
from tinychat.models.families.bloom import slopes_of
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, with_first_row

_LAYER = f"{BERT}.encoder.layer.{{}}."
_OF_BERT = bert_tensors(BERT)
TENSORS = replace(
    _OF_BERT,
    embed=with_first_row(_OF_BERT.embed, f"{BERT}.{KINDS}"),
    gate_up=(f"{_LAYER}mlp.gated_layers",),
    down=f"{_LAYER}mlp.wo",
    norms={**_OF_BERT.norms, "post_mlp_layernorm": f"{_LAYER}mlp.layernorm"},
)
_GATES = {"geglu": "gelu", "reglu": "relu"}


def prepare(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give the activation of the gates its name."""
    return {**raw, "hidden_act": _GATES.get(str(raw.get("feed_forward_type")), "without gates")}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration."""
    require_texts(values, position_embedding_type=("alibi",))
    config = replace(encoder(config), qkv_bias=True, o_bias=True, mlp_bias=True)
    slopes = slopes_of(config.num_attention_heads)
    return replace(config, alibi_slopes=slopes, rotary_dims=(0,) * config.num_hidden_layers)


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linears."""
    return without_gate_bias(decoder_linears(config, names))


JINA_BERT = Family(
    "JinaBertModel",
    "bert",
    "jina-embeddings-v2",
    "an encoder with ALiBi and gates: embeddings alone",
    DEFAULTS,
    read,
    TENSORS,
    linears,
    names=NAMES,
    prepared=prepare,
    also_written=("JinaBertForMaskedLM",),
)
