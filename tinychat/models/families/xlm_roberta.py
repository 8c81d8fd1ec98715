"""XLM-RoBERTa: RoBERTa under another name; with rotation it is Jina Embeddings 3, as its makers publish that.

(Conneau et al., 2019, https://arxiv.org/abs/1911.02116; github.com/huggingface/transformers, models/xlm_roberta).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import jina_embeddings_v3
from tinychat.models.families.bert import ROBERTA_MODEL, also_written, read_roberta
from tinychat.models.family import Family


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration, that of the other family where positions are rotated."""
    if values.get("position_embedding_type") != "rotary":
        return read_roberta(values, config)
    values.require(use_reg_tokens=False)
    theta = values.number("rotary_emb_base", 1.001, 1e30)
    jina = replace(config, architecture=jina_embeddings_v3.JINA_EMBEDDINGS_V3.architecture, rope_theta=theta)
    return jina_embeddings_v3.read(values, jina)


XLM_ROBERTA_MODEL: Family = replace(
    ROBERTA_MODEL,
    architecture="XLMRobertaModel",
    model_type="xlm-roberta",
    models="XLM-RoBERTa: bge-m3, multilingual-e5, arctic-embed-l-v2.0",
    read=read,
    also_written=also_written("XLMRoberta"),
)
