"""MiniMax-M2: layers of experts that sigmoids choose; queries and keys are normed over all heads, and rotated in part.

(MiniMax, 2025, https://huggingface.co/MiniMaxAI/MiniMax-M2; github.com/huggingface/transformers, models/minimax_m2.)
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames
from tinychat.models.experts import read_sigmoid_experts, with_num_experts
from tinychat.models.families.experts import MIXTRAL_EXPERTS, SPARSE
from tinychat.models.family import Family

DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 196608,
    "rope_theta": 5e6,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
TENSORS = TensorNames(experts=replace(MIXTRAL_EXPERTS, bias=f"{SPARSE}e_score_correction_bias"))


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of a file with ``partial_rotary_factor`` for ``rotary_dim``, which published files have."""
    rotary_dim, head_dim = raw.get("rotary_dim"), raw.get("head_dim", DEFAULTS["head_dim"])
    if type(rotary_dim) is int and type(head_dim) is int and head_dim > 0:
        raw = {"partial_rotary_factor": rotary_dim / head_dim, **raw}
    return with_num_experts(raw)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has experts; there are no biases."""
    experts = read_sigmoid_experts(values, range(config.num_hidden_layers), "intermediate_size")
    return replace(config, qk_norm="width", experts=experts)


MINIMAX_M2 = Family(
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    "MiniMax-M2",
    "experts by sigmoids, q/k norm over all heads, a part of each head rotated",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    prepared=prepared,
)
