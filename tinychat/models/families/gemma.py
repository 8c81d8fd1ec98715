"""Gemma 1, 2, 3 (text) and VaultGemma: Llama's layers with GELU gates, large embeddings, and norms by ``1 + weight``.

Gemma 2 norms the outputs of attention and MLP as well as their inputs, caps scores and logits, and has a window in
every other layer; VaultGemma is the same without norms of outputs. Gemma 3 norms each head's queries and keys instead
of capping, and has a window in five of six layers, whose rotation has a base of its own (Gemma Team, 2024 and 2025,
https://arxiv.org/abs/2403.08295, https://arxiv.org/abs/2408.00118, https://arxiv.org/abs/2503.19786;
github.com/huggingface/transformers, models/gemma, gemma2, gemma3 and vaultgemma).
"""

from dataclasses import replace

from tinychat.models.config import ModelConfig, read_windows
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import HEAD_NORMS, LAYER, TensorNames
from tinychat.models.families import llama
from tinychat.models.family import Family
from tinychat.models.rope_scaling import read_sliding_theta, split_rope

FOUR_NORMS = TensorNames(
    norms={
        "input_layernorm": f"{LAYER}input_layernorm",
        "norm": "model.norm",
        **HEAD_NORMS,
        "post_self_attn_layernorm": f"{LAYER}post_attention_layernorm",
        "post_attention_layernorm": f"{LAYER}pre_feedforward_layernorm",
        "post_mlp_layernorm": f"{LAYER}post_feedforward_layernorm",
    }
)
TENSORS = TensorNames(norm_offset=1.0)
FOUR_OFFSET_NORMS = replace(FOUR_NORMS, norm_offset=1.0)
TWO_NORMS = replace(
    TENSORS, norms={name: FOUR_NORMS.norms[name] for name in ("input_layernorm", "norm", "post_attention_layernorm")}
)


def read(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Activations that are called "gelu" are meant to be the approximation by tanh, as in transformers."""
    config = llama.read_llama(values, config)
    config = replace(config, bidirectional=config.bidirectional or values.flag("use_bidirectional_attention", False))
    activation = "gelu_tanh" if config.hidden_act == "gelu" else config.hidden_act
    return replace(config, hidden_act=activation, mlp_bias=False, embedding_multiplier=config.hidden_size**0.5)


def read_gemma2(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every other layer has the window, from the first one on, unless the file names them."""
    config = _read_scale_and_caps(values, read(values, config))
    return replace(config, sliding_windows=read_windows(values, config.num_hidden_layers, lambda layer: layer % 2 == 0))


def read_gemma3(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All but every sixth layer have the window, unless the file names them."""
    config = _read_scale_and_caps(values, read(values, config))
    interval = values.optional_integer("sliding_window_pattern", 1, 4096) or 6
    theta = read_sliding_theta(values, values.number("rope_local_base_freq", 1.001, 1e30))
    windows = read_windows(values, config.num_hidden_layers, lambda layer: (layer + 1) % interval != 0)
    if config.bidirectional:
        # The file counts both sides together, without the query itself.
        windows = tuple(window and window // 2 + 1 for window in windows)
    return replace(config, qk_norm="head", sliding_windows=windows, sliding_rope_theta=theta)


def _read_scale_and_caps(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        attention_scale=values.number("query_pre_attn_scalar", 1e-3, 1e9) ** -0.5,
        attention_softcap=values.optional_number("attn_logit_softcapping", 1e-3, 1e9),
        logits_softcap=values.optional_number("final_logit_softcapping", 1e-3, 1e9),
    )


_GEMMA = {
    "hidden_act": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA2 = {
    **_GEMMA,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {
    **_GEMMA2,
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_NAMES = {"hidden_act": "hidden_activation"}

GEMMA = Family("GemmaForCausalLM", "gemma", "Gemma 1, CodeGemma", "GELU gates, large embeddings", _GEMMA, read, TENSORS)
GEMMA2 = Family(
    "Gemma2ForCausalLM",
    "gemma2",
    "Gemma 2",
    "norms before and after, soft caps, sliding window by layer",
    _GEMMA2,
    read_gemma2,
    FOUR_OFFSET_NORMS,
    names=_NAMES,
)
VAULT_GEMMA = Family(
    "VaultGemmaForCausalLM",
    "vaultgemma",
    "VaultGemma 1B",
    "soft caps, sliding window by layer",
    _GEMMA2,
    read_gemma2,
    TWO_NORMS,
    names=_NAMES,
)
GEMMA3 = Family(
    "Gemma3ForCausalLM",
    "gemma3_text",
    "Gemma 3 (text)",
    "norms before and after, q/k norm, rotation and sliding window by layer",
    _GEMMA3,
    read_gemma3,
    FOUR_OFFSET_NORMS,
    names=_NAMES,
    prepared=split_rope,
)
