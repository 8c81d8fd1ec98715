"""ELECTRA: BERT under other names, with a head of its own where it ranks.

(Clark et al., 2020, https://arxiv.org/abs/2003.10555; github.com/huggingface/transformers, models/electra).
"""

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import bert
from tinychat.models.family import Family


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration; the smallest models have a narrow embedding, behind whose norm is a linear."""
    if values.integer("embedding_size", 1, 1 << 20) != config.hidden_size:
        raise UnsupportedModelError(f"{values.source}: an embedding_size other than hidden_size is not supported")
    return bert.read(values, config)


ELECTRA = Family(
    "ElectraModel",
    "electra",
    "ELECTRA: ms-marco-electra-base",
    "an encoder: embeddings and ranking alone",
    bert.DEFAULTS | {"embedding_size": 128},
    read,
    bert.bert_tensors("electra"),
    tables=bert.position_tables("electra"),
    names=bert.NAMES,
    also_written=("ElectraForMaskedLM", "ElectraForPreTraining"),
)
