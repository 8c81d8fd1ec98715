"""K-EXAONE: EXAONE 4's attention behind norms, and DeepSeek-V3's experts behind the first layers.

Three of four layers have a window; the others do not rotate (LG AI Research, 2026, https://arxiv.org/abs/2601.01739;
github.com/huggingface/transformers, models/exaone_moe).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import MLP, ExpertNames, TensorNames
from tinychat.models.experts import read_sigmoid_experts, read_sparse_layers, with_shared
from tinychat.models.families import olmo2
from tinychat.models.family import Family

TENSORS = TensorNames(experts=ExpertNames(bias=f"{MLP}e_score_correction_bias"))


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """The first layers have an MLP, unless the file names those that have."""
    L = config.num_hidden_layers
    first = values.integer("first_k_dense_replace", 0, L - 1)
    experts = read_sigmoid_experts(values, read_sparse_layers(values, ["dense"] * first + ["sparse"] * (L - first)))
    return replace(olmo2.read_exaone4(values, config), experts=with_shared(values, experts))


EXAONE_MOE = Family(
    "ExaoneMoeForCausalLM",
    "exaone_moe",
    "K-EXAONE",
    "experts by sigmoids, a shared expert, q/k norm, sliding window by layer, no rotation in the others",
    {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
    },
    read,
    TENSORS,
    names={"n_shared_experts": "num_shared_experts"},
)
