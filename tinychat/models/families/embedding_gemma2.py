"""EmbeddingGemma 2 (text): an encoder of Gemma 4's layers, for embeddings.

The input of a layer is a projection of the large embedding alone. Windows reach to both sides. Behind the last norm
there is a linear layer; its output of the mean is the mean of its outputs, so vectors pass it behind the pooling
(github.com/huggingface/transformers, models/embedding_gemma2).
"""

import re
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.families import gemma4
from tinychat.models.families.gemma import FOUR_NORMS
from tinychat.models.family import Family
from tinychat.models.rope_scaling import FULL, SLIDING
from tinychat.models.tensors import PROJECTION, Table

_BLOCKS = re.compile(r"\bple(_block)?\.")


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Return the configuration of Gemma 4 without a table of the layers' inputs; windows are those of one side."""
    config = gemma4.read(values, config)
    assert config.varied is not None
    return replace(
        config,
        bidirectional=True,
        # The file counts positions beside the query itself.
        sliding_windows=tuple(window and window + 1 for window in config.sliding_windows),
        varied=replace(config.varied, input_ids=0),
        embedding_dim=values.integer("embedding_dim", 1, 1 << 16),
    )


def tables(config: ModelConfig) -> list[Table]:
    """List the matrix of the last linear layer."""
    return [Table(PROJECTION, "model.embedding_projection", config.embedding_dim, config.hidden_size)]


def renamed(name: str) -> str:
    """Return Gemma 4's name of a tensor."""
    return _BLOCKS.sub("", name)


DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 262144,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 512,
    "embedding_dim": 768,
    f"{SLIDING}_rope": {"rope_type": "default", "rope_theta": 10000.0},
    f"{FULL}_rope": {"rope_type": "default", "rope_theta": 1000000.0},
}

EMBEDDING_GEMMA2 = Family(
    "EmbeddingGemma2TextModel",
    "embedding_gemma2_text",
    "EmbeddingGemma 2 (text)",
    "an encoder with heads of two sizes, windows by layer, projected inputs of layers: embeddings alone",
    DEFAULTS,
    read,
    FOUR_NORMS,
    gemma4.linears,
    gemma4.norms,
    tables,
    names={"hidden_act": "hidden_activation"},
    prepared=gemma4.kinds_apart,
    renamed=renamed,
)
