"""DistilBERT: BERT without kinds of text, in half as many layers.

(Sanh et al., 2019, https://arxiv.org/abs/1910.01108; github.com/huggingface/transformers, models/distilbert).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.families.bert import positions_alone, stream_norms, with_positions
from tinychat.models.family import Family

EMBEDDINGS, LAYER = "distilbert.embeddings.", "distilbert.transformer.layer.{}."
ATTENTION = f"{LAYER}attention."
TENSORS = TensorNames(
    embed=f"{EMBEDDINGS}word_embeddings",
    qkv=(f"{ATTENTION}q_lin", f"{ATTENTION}k_lin", f"{ATTENTION}v_lin"),
    o=f"{ATTENTION}out_lin",
    gate_up=(f"{LAYER}ffn.lin1",),
    down=f"{LAYER}ffn.lin2",
    norms=stream_norms(f"{EMBEDDINGS}LayerNorm", f"{LAYER}sa_layer_norm", f"{LAYER}output_layer_norm"),
    norm_bias=True,
)
EPS = 1e-12  # which no file says
DEFAULTS = {"activation": "gelu", "max_position_embeddings": 512, "rms_norm_eps": EPS}
NAMES = {
    "hidden_size": "dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "hidden_act": "activation",
}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration."""
    return replace(with_positions(config), rms_norm_eps=EPS)


DISTILBERT = Family(
    "DistilBertModel",
    "distilbert",
    "DistilBERT: msmarco-distilbert, distiluse-multilingual",
    "an encoder: embeddings alone",
    DEFAULTS,
    read,
    TENSORS,
    tables=positions_alone(f"{EMBEDDINGS}position_embeddings"),
    names=NAMES,
    also_written=("DistilBertForMaskedLM",),
)
