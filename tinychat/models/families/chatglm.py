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
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, halves_order

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


def prepared(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Say how many heads of keys there are, which is one for each of queries unless the file says otherwise."""
    return raw if raw.get("multi_query_attention", False) else {**raw, "multi_query_group_num": None}


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Biases are as the file says; the rotation's base is multiplied."""
    for key, only in (
        ("rmsnorm", True),
        ("post_layer_norm", True),
        ("apply_residual_connection_post_layernorm", False),
    ):
        if values.flag(key, only) != only:
            raise UnsupportedModelError(f"{values.source}: {key} {str(not only).lower()} is not supported")
    ratio = values.number("rope_ratio", 1e-3, 1e6)
    if ratio != 1 and "chatglm2" in (values.optional_text("_name_or_path") or ""):
        raise UnsupportedModelError(
            f"{values.source}: rope_ratio of ChatGLM 2 divides positions, which is not supported; use ChatGLM 3"
        )
    bias = values.flag("add_bias_linear", False)
    qkv_bias = bias or values.flag("add_qkv_bias", False)
    return replace(config, qkv_bias=qkv_bias, o_bias=bias, mlp_bias=bias, rope_theta=BASE * ratio)


def linears(config: ModelConfig) -> list[Linear]:
    """List the linear layers."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    order = (halves_order(H + G, d, config.rotary_dim, others=G * d),)
    fused = f"{ATTENTION}query_key_value"
    found = [
        Linear("embed_tokens", ("transformer.embedding.word_embeddings",), (V,), D, None),
        Linear("qkv_proj", (fused,), ((H + 2 * G) * d,), D, L, config.qkv_bias, order=order),
        Linear("o_proj", (f"{ATTENTION}dense",), (D,), H * d, L, config.o_bias),
        Linear("gate_up_proj", (f"{MLP}dense_h_to_4h",), (2 * F,), D, L, config.mlp_bias),
        Linear("down_proj", (f"{MLP}dense_4h_to_h",), (D,), F, L, config.mlp_bias),
    ]
    if config.tie_word_embeddings:
        return found
    return [*found, Linear("lm_head", ("transformer.output_layer",), (V,), D, None)]


def norms(config: ModelConfig) -> list[Norm]:
    """List the norms."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{LAYER}input_layernorm", D, L),
        Norm("post_attention_layernorm", f"{LAYER}post_attention_layernorm", D, L),
        Norm("norm", f"{MODEL}final_layernorm", D, None),
    ]


_CHATGLM = Family(
    "ChatGLMModel",
    "chatglm",
    "ChatGLM 2, 3, GLM-4 9B (2024)",
    "fused projections, half of each head rotated, by neighbours",
    DEFAULTS,
    read,
    linears,
    norms,
    partial_rotary=True,
    names=NAMES,
    prepared=prepared,
)
FAMILIES = (
    _CHATGLM,
    replace(_CHATGLM, architecture="ChatGLMForConditionalGeneration", models="the same", covered="the same"),
)
