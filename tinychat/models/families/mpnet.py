"""MPNet: RoBERTa without kinds of text, whose attention has biases for distances, the same in all layers.

(Song et al., 2020, https://arxiv.org/abs/2004.09297; github.com/huggingface/transformers, models/mpnet).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, decoder_norms
from tinychat.models.distance_biases import BUCKETS, DISTANCE_BIASES
from tinychat.models.families.bert import (
    DEFAULTS,
    NAMES,
    PADDING,
    behind_padding,
    positions_alone,
    stream_norms,
    with_positions,
)
from tinychat.models.family import Family
from tinychat.models.tensors import Norm

EMBEDDINGS, LAYER = "mpnet.embeddings.", "mpnet.encoder.layer.{}."
ATTENTION = f"{LAYER}attention."
TENSORS = TensorNames(
    embed=f"{EMBEDDINGS}word_embeddings",
    qkv=(f"{ATTENTION}attn.q", f"{ATTENTION}attn.k", f"{ATTENTION}attn.v"),
    o=f"{ATTENTION}attn.o",
    gate_up=(f"{LAYER}intermediate.dense",),
    down=f"{LAYER}output.dense",
    norms=stream_norms(f"{EMBEDDINGS}LayerNorm", f"{ATTENTION}LayerNorm", f"{LAYER}output.LayerNorm"),
    norm_bias=True,
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration; transformers takes as given how many buckets there are."""
    values.integer("relative_attention_num_buckets", BUCKETS, BUCKETS)
    return replace(with_positions(behind_padding(values, config)), distance_biases=True)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, and the biases."""
    size, layers = BUCKETS * config.num_attention_heads, config.num_hidden_layers
    source = "mpnet.encoder.relative_attention_bias"
    return [*decoder_norms(config, names), Norm(DISTANCE_BIASES, source, size, layers, padded=False, flattened=True)]


MPNET = Family(
    "MPNetModel",
    "mpnet",
    "MPNet: all-mpnet-base, multi-qa-mpnet",
    "an encoder: embeddings alone",
    {key: value for key, value in DEFAULTS.items() if key != "type_vocab_size"}
    | {"pad_token_id": PADDING, "relative_attention_num_buckets": BUCKETS},
    read,
    TENSORS,
    norms=norms,
    tables=positions_alone(f"{EMBEDDINGS}position_embeddings", PADDING + 1),
    names=NAMES,
    also_written=("MPNetForMaskedLM",),
)
