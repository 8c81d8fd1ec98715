"""ChatGLM 2 and 3, and GLM-4 9B as first published: Llama's layers by other names, fused projections.

Neighbouring channels are rotated together, the first half of each head; rows of queries and keys are reordered for that
(Du et al., 2022, https://arxiv.org/abs/2103.10360; GLM Team, 2024, https://arxiv.org/abs/2406.12793; the code of
huggingface.co/THUDM/chatglm3-6b and glm-4-9b-chat).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import TensorNames, fused_neighbours_rows, layer_norms
from tinychat.models.family import Family

MODEL = "transformer.encoder."
LAYER = f"{MODEL}layers.{{}}."
ATTENTION, MLP = f"{LAYER}self_attention.", f"{LAYER}mlp."
BASE = 10_000
DEFAULTS = {
    "layernorm_epsilon": 1e-5,
    "kv_channels": 128,
    "seq_length": 2048,
    "rope_ratio": 1,
    "partial_rotary_factor": 0.5,
}
NAMES = {
    "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers",
    "num_key_value_heads": "multi_query_group_num",
    "head_dim": "kv_channels",
    "vocab_size": "padded_vocab_size",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layernorm_epsilon",
}
TENSORS = TensorNames(
    embed="transformer.embedding.word_embeddings",
    qkv=(f"{ATTENTION}query_key_value",),
    qkv_order=fused_neighbours_rows,
    o=f"{ATTENTION}dense",
    gate_up=(f"{MLP}dense_h_to_4h",),
    down=f"{MLP}dense_4h_to_h",
    lm_head="transformer.output_layer",
    norms=layer_norms(f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm", f"{MODEL}final_layernorm"),
)


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Give each head of queries one of keys unless the file groups them."""
    return raw if raw.get("multi_query_attention", False) else {**raw, "multi_query_group_num": None}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are those of the file; the rotation's base is multiplied."""
    values.require(rmsnorm=True, post_layer_norm=True, apply_residual_connection_post_layernorm=False)
    ratio = values.number("rope_ratio", 1e-3, 1e6)
    if ratio != 1 and "chatglm2" in (values.optional_text("_name_or_path") or ""):
        raise UnsupportedModelError(
            f"{values.source}: rope_ratio of ChatGLM 2 divides positions, which is not supported; use ChatGLM 3"
        )
    bias = values.flag("add_bias_linear", False)
    qkv_bias = bias or values.flag("add_qkv_bias", False)
    return replace(config, qkv_bias=qkv_bias, o_bias=bias, mlp_bias=bias, rope_theta=BASE * ratio)


CHATGLM = Family(
    "ChatGLMModel",
    "chatglm",
    "ChatGLM 2, 3, GLM-4 9B (2024)",
    "fused projections, half of each head rotated, by neighbours",
    DEFAULTS,
    read,
    TENSORS,
    partial_rotary=True,
    names=NAMES,
    prepared=prepared,
)
OLDER_CHATGLM = replace(CHATGLM, architecture="ChatGLMForConditionalGeneration", models="the same", covered="the same")
