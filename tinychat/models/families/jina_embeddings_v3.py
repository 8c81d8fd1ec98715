"""Jina Embeddings 3: XLM-RoBERTa with rotation instead of learned positions.

Its makers' checkpoint has an adapter for each task (`checkpoint.task_adapters`); transformers has these apart (Sturua
et al., 2024, https://arxiv.org/abs/2409.10173; github.com/huggingface/transformers, models/jina_embeddings_v3).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.families.bert import EMBEDDINGS, KINDS, NAMES, encoder, stream_norms
from tinychat.models.family import Family
from tinychat.models.tensors import with_first_row

LAYER = "roberta.encoder.layers.{}."
TENSORS = TensorNames(
    embed=with_first_row(f"roberta.{EMBEDDINGS}word_embeddings", f"roberta.{KINDS}"),
    qkv=(f"{LAYER}mixer.Wqkv",),
    o=f"{LAYER}mixer.out_proj",
    gate_up=(f"{LAYER}mlp.fc1",),
    down=f"{LAYER}mlp.fc2",
    norms=stream_norms("roberta.emb_ln", f"{LAYER}norm1", f"{LAYER}norm2"),
    norm_bias=True,
)
DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 8194,
    "layer_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration."""
    return replace(encoder(config), gated=False, qkv_bias=True, o_bias=True, mlp_bias=True)


JINA_EMBEDDINGS_V3 = Family(
    "JinaEmbeddingsV3Model",
    "jina_embeddings_v3",
    "jina-embeddings-v3",
    "an encoder with rotation: embeddings alone; a conversion takes the adapter of one task",
    DEFAULTS,
    read,
    TENSORS,
    names=NAMES,
    also_written=("JinaEmbeddingsV3ForMaskedLM",),
)
