"""llama.cpp's names of architectures, keys and tensors, and the changes that its converter makes to each family.

(github.com/ggml-org/llama.cpp: conversion/ has the converters; gguf-py/gguf/constants.py the names.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinychat.checkpoint.gguf_gemma import gemma2, gemma3, gemma3n, gemma4
from tinychat.checkpoint.gguf_values import Config, GgufValues, experts_of, positive
from tinychat.errors import UnsupportedModelError

# Most architectures' names of norms, and of what else has one number for each channel.
NORMS = {
    "embed_norm": "token_embd_norm",
    "input_layernorm": "attn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q_a_norm": "attn_q_a_norm",
    "kv_a_norm": "attn_kv_a_norm",
    "sinks": "attn_sinks",
    "conv_taps": "shortconv.conv",
    "delta_taps": "ssm_conv1d",
    "delta_norm": "ssm_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "norm": "output_norm",
}
Extra = Callable[[GgufValues], Config]
"""Called with a file's values; returns more keys of ``config.json``."""


@dataclass(frozen=True)
class GgufFamily:
    """One architecture of llama.cpp."""

    # Its name in transformers; or a function that chooses one.
    architecture: str | Callable[[GgufValues], str]
    # Whether rows of queries and keys are reordered in the file, so that neighbouring channels are rotated together.
    neighbours: bool = False
    # Adjustments of the family (`checkpoint.adjusted`) that the file has already: "order", "transposed", "offset".
    done: frozenset[str] = frozenset()
    extra: Extra = lambda values: {}
    # Whether a mixture of experts of it is known.
    experts: bool = False
    # Names of norms that differ from `NORMS`; where an MLP beside attention has a norm of its own, both.
    norms: Mapping[str, str] = field(default_factory=dict)
    parallel_norms: Mapping[str, str] = field(default_factory=dict)


def _minicpm(values: GgufValues) -> Config:
    # Older files have none of the keys: they are of the first model.
    layers = positive(values.config.get("num_hidden_layers"), 40)
    return _multipliers(values, 12.0, 1.4 / layers**0.5, positive(values.config.get("hidden_size"), 256) / 256)


def _multipliers(values: GgufValues, embedding: float, residual: float, logits: float) -> Config:
    return {
        "embedding_multiplier": values.get("embedding_scale", embedding),
        "residual_multiplier": values.get("residual_scale", residual),
        "logits_scaling": values.get("logit_scale", logits),
        "attention_multiplier": values.number("attention.scale", positive(values.config.get("head_dim"), 64) ** -0.5),
    }


def _granite_moe(values: GgufValues) -> Config:
    shared = values.get("expert_shared_feed_forward_length", 0)
    return {**_multipliers(values, 1.0, 1.0, 1.0), **experts_of(values), "shared_intermediate_size": shared}


def _exaone4(values: GgufValues) -> Config:
    window = values.config.get("sliding_window")
    return {"sliding_window": window} | ({"layer_types": values.layer_types(4)} if window else {})


def _ministral3(values: GgufValues) -> Config:
    magnitude = values.get("rope.scaling.yarn_log_multiplier", 1.0)
    rope = {
        "rope_type": "yarn",
        "rope_theta": values.config.get("rope_theta"),
        "factor": values.get("rope.scaling.factor"),
        "original_max_position_embeddings": values.get("rope.scaling.original_context_length"),
        "beta_fast": values.get("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": values.get("rope.scaling.yarn_beta_slow", 1.0),
        "mscale": magnitude,
        "mscale_all_dim": magnitude,
        "llama_4_scaling_beta": values.get("attention.temperature_scale", 0.0),
    }
    return {"rope_parameters": rope, "rope_scaling": None}


def _stablelm(values: GgufValues) -> Config:
    return {
        "use_qkv_bias": values.config["attention_bias"],
        "use_parallel_residual": bool(values.get("use_parallel_residual", False)),
        "qk_layernorm": values.has("attn_q_norm.weight"),
    }


def _falcon(values: GgufValues) -> Config:
    is_new = values.config.get("num_key_value_heads", 1) != 1
    norms = {"num_ln_in_parallel_attn": 2 if values.has("attn_norm_2.weight") else 1} if is_new else {}
    return {"new_decoder_architecture": is_new, "bias": values.config["attention_bias"], **norms}


def _mpt(values: GgufValues) -> Config:
    largest = values.number("attention.max_alibi_bias", 0)
    attention = {
        "alibi": bool(largest),
        "alibi_bias_max": round(largest) or 8,
        "clip_qkv": values.get("attention.clamp_kqv"),
        "qk_ln": values.has("attn_q_norm.weight"),
    }
    return {"attn_config": attention, "no_bias": not (values.config["attention_bias"] or values.config["mlp_bias"])}


def _chatglm(values: GgufValues) -> Config:
    return {
        "multi_query_attention": True,
        "add_qkv_bias": values.config["attention_bias"],
        "rope_ratio": positive(values.config.get("rope_theta"), 1e4) / 1e4,
    }


def _baichuan(values: GgufValues) -> Config:
    if values.config.get("num_hidden_layers") == 40:
        what = "Baichuan of 13B is not read from GGUF files; use the checkpoint that it was made of"
        raise UnsupportedModelError(f"{values.source}: {what}")
    return {}


def _qwen_moe(values: GgufValues) -> Config:
    found = {
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": values.get("expert_shared_feed_forward_length"),
        # No key has it: llama.cpp has it by the architecture.
        "norm_topk_prob": not values.has("ffn_gate_inp_shexp.weight"),
    }
    known = {key: value for key, value in found.items() if value is not None}
    return {**experts_of(values), **known, "qkv_bias": values.config["attention_bias"]}


def _qwen3_5(values: GgufValues) -> Config:
    heads = values.get("ssm.time_step_rank")
    inner = values.number("ssm.inner_size", 0)
    found = {
        # Blocks of multi-token prediction are counted as layers.
        "num_hidden_layers": values.number("block_count", 0) - values.number("nextn_predict_layers", 0),
        "full_attention_interval": values.get("full_attention_interval", 4),
        "linear_conv_kernel_dim": values.get("ssm.conv_kernel"),
        "linear_key_head_dim": values.get("ssm.state_size"),
        "linear_num_key_heads": values.get("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": int(inner / positive(heads, 1)),
    }
    return {key: value for key, value in found.items() if value is not None}


def _qwen3_5_moe(values: GgufValues) -> Config:
    return {**_qwen3_5(values), **_qwen_moe(values)}


def _sigmoid_experts(values: GgufValues) -> Config:
    dense = int(values.number("leading_dense_block_count", 0))
    found = {
        **experts_of(values),
        "n_routed_experts": values.get("expert_count"),
        "n_shared_experts": values.get("expert_shared_count"),
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "first_k_dense_replace": dense,
        "num_dense_layers": dense,
        "norm_topk_prob": bool(values.get("expert_weights_norm", True)),
        "routed_scaling_factor": values.number("expert_weights_scale", 1.0),
        "n_group": values.get("expert_group_count"),
        "topk_group": values.get("expert_group_used_count"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _ernie4_5_moe(values: GgufValues) -> Config:
    found = {
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "moe_num_shared_experts": values.get("expert_shared_count", 0),
        "moe_layer_start_index": values.get("leading_dense_block_count"),
        "moe_layer_interval": values.get("interleave_moe_layer_step"),
    }
    return {**experts_of(values), **{key: value for key, value in found.items() if value is not None}}


def _glm4_moe(values: GgufValues) -> Config:
    layers = int(values.number("block_count", 0) - values.number("nextn_predict_layers", 0))
    return {
        **_sigmoid_experts(values),
        "use_qk_norm": values.has("attn_q_norm.weight"),
        # Blocks of multi-token prediction are counted as layers.
        "num_hidden_layers": layers,
    }


def _deepseek2_architecture(values: GgufValues) -> str:
    if not values.get("expert_count"):
        return "YoutuForCausalLM"
    # Not every file says how experts are chosen.
    is_v3 = any(name.endswith(".exp_probs_b.bias") for name in values.tensors)
    return "DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"


def _deepseek2(values: GgufValues) -> Config:
    rotated, scaling = values.get("rope.dimension_count"), values.config.get("rope_scaling")
    found = {
        **(_sigmoid_experts(values) if values.get("expert_count") else {}),
        "num_hidden_layers": int(values.number("block_count", 0) - values.number("nextn_predict_layers", 0)),
        "num_key_value_heads": None,
        "head_dim": rotated,
        "partial_rotary_factor": None,
        "q_lora_rank": values.get("attention.q_lora_rank") or None,
        "kv_lora_rank": values.get("attention.kv_lora_rank"),
        # Older files have the sizes of heads without latents under the common keys.
        "qk_nope_head_dim": int(values.number("attention.key_length_mla", values.number("attention.key_length", 0)))
        - int(positive(rotated, 0)),
        "v_head_dim": values.get("attention.value_length_mla") or values.get("attention.value_length"),
        "norm_topk_prob": bool(values.get("expert_weights_norm", False)),
        "n_group": values.get("expert_group_count", 1),
    }
    if isinstance(scaling, dict):
        # The converter divides it by 10.
        magnitude = 10 * values.number("rope.scaling.yarn_log_multiplier", 0.1)
        found["rope_scaling"] = {**scaling, "mscale": magnitude, "mscale_all_dim": magnitude}
    return found


def _gpt_oss(values: GgufValues) -> Config:
    found = {**experts_of(values), "intermediate_size": values.get("expert_feed_forward_length")}
    scaling = values.config.get("rope_scaling")
    # Written nowhere: the checkpoint's bounds are not rounded to whole channels.
    return found | ({"rope_scaling": {**scaling, "truncate": False}} if isinstance(scaling, dict) else {})


def _lfm2(values: GgufValues) -> Config:
    found: dict[str, Any] = {"block_auto_adjust_ff_dim": False, "conv_L_cache": values.get("shortconv.l_cache")}
    heads = values.config.get("num_key_value_heads")
    if isinstance(heads, list) and heads and all(type(count) is int for count in heads):
        # Layers without keys have convolutions.
        found["layer_types"] = ["full_attention" if count > 0 else "conv" for count in heads]
        found["num_key_value_heads"] = max(heads)
    return found


_AFTER_ATTENTION = {"post_attention_layernorm": "post_attention_norm"}
_ORDERED, _GAINS = frozenset(["order"]), frozenset(["offset"])
FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(
        lambda values: "MixtralForCausalLM" if values.get("expert_count") else "LlamaForCausalLM",
        True,
        extra=experts_of,
        experts=True,
    ),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "qwen2moe": GgufFamily("Qwen2MoeForCausalLM", extra=_qwen_moe, experts=True),
    "qwen3moe": GgufFamily("Qwen3MoeForCausalLM", extra=_qwen_moe, experts=True),
    "qwen35": GgufFamily("Qwen3_5ForCausalLM", done=_GAINS, extra=_qwen3_5, norms=_AFTER_ATTENTION),
    "qwen35moe": GgufFamily(
        "Qwen3_5MoeForCausalLM", done=_GAINS, extra=_qwen3_5_moe, experts=True, norms=_AFTER_ATTENTION
    ),
    # Its tensors are those of Qwen3.5.
    "qwen3next": GgufFamily(
        "Qwen3_5MoeForCausalLM", done=_GAINS, extra=_qwen3_5_moe, experts=True, norms=_AFTER_ATTENTION
    ),
    "olmoe": GgufFamily("OlmoeForCausalLM", extra=experts_of, experts=True),
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        done=_ORDERED,
        extra=_gpt_oss,
        experts=True,
        norms=_AFTER_ATTENTION,
    ),
    "lfm2": GgufFamily("Lfm2ForCausalLM", extra=_lfm2, norms={"norm": "token_embd_norm"}),
    "lfm2moe": GgufFamily(
        "Lfm2MoeForCausalLM",
        extra=lambda values: {**_sigmoid_experts(values), **_lfm2(values)},
        experts=True,
        norms={"norm": "token_embd_norm"},
    ),
    "glm4moe": GgufFamily("Glm4MoeForCausalLM", extra=_glm4_moe, experts=True, norms=_AFTER_ATTENTION),
    "dots1": GgufFamily(
        "Dots1ForCausalLM", extra=lambda values: {**_sigmoid_experts(values), "sliding_window": None}, experts=True
    ),
    "deepseek2": GgufFamily(_deepseek2_architecture, extra=_deepseek2, experts=True),
    "phi3": GgufFamily("Phi3ForCausalLM"),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", True),
    "gemma": GgufFamily("GemmaForCausalLM", done=_GAINS),
    "gemma2": GgufFamily("Gemma2ForCausalLM", done=_GAINS, extra=gemma2),
    "gemma3": GgufFamily("Gemma3ForCausalLM", done=_GAINS, extra=gemma3),
    "gemma4": GgufFamily(
        "Gemma4ForCausalLM",
        extra=gemma4,
        experts=True,
        norms={
            "wide_q_norm": "attn_q_norm",
            "wide_k_norm": "attn_k_norm",
            "layer_scale": "layer_output_scale",
            "inputs_norm": "per_layer_proj_norm",
            "input_norm": "post_norm",
            "mlp_norm": "post_ffw_norm_1",
            "before_experts": "pre_ffw_norm_2",
            "experts_norm": "post_ffw_norm_2",
        },
    ),
    "gemma3n": GgufFamily(
        "Gemma3nForCausalLM",
        extra=gemma3n,
        norms={
            "inputs_norm": "per_layer_proj_norm",
            "input_norm": "post_norm",
            "laurel_norm": "laurel_post_norm",
            "streams_norm": "altup_router_norm",
            "streams_router": "altup_router",
            "predictions": "altup_predict_coef",
            "corrections": "altup_correct_coef",
            "corrected_scale": "altup_correct_scale",
        },
    ),
    "granite": GgufFamily("GraniteForCausalLM", True, extra=lambda values: _multipliers(values, 1.0, 1.0, 1.0)),
    "granitemoe": GgufFamily(
        lambda values: f"GraniteMoe{'Shared' if values.has('ffn_gate_shexp.weight') else ''}ForCausalLM",
        True,
        extra=_granite_moe,
        experts=True,
    ),
    "minicpm": GgufFamily("GraniteForCausalLM", True, extra=_minicpm),
    "olmo2": GgufFamily(
        lambda values: f"Olmo{3 if values.get('attention.sliding_window') else 2}ForCausalLM", extra=_exaone4
    ),
    "arcee": GgufFamily("ArceeForCausalLM", True),
    "ernie4_5": GgufFamily("Ernie4_5ForCausalLM", extra=lambda values: {"use_bias": values.has("attn_output.bias")}),
    "ernie4_5-moe": GgufFamily("Ernie4_5_MoeForCausalLM", extra=_ernie4_5_moe, experts=True),
    "seed_oss": GgufFamily("SeedOssForCausalLM", norms=_AFTER_ATTENTION),
    "exaone4": GgufFamily("Exaone4ForCausalLM", extra=_exaone4),
    "mistral3": GgufFamily(
        lambda values: "Ministral3ForCausalLM" if values.get("attention.temperature_scale") else "LlamaForCausalLM",
        True,
        extra=lambda values: _ministral3(values) if values.get("attention.temperature_scale") else {},
    ),
    "chatglm": GgufFamily(
        lambda values: "ChatGLMModel" if values.has("attn_qkv.weight") else "GlmForCausalLM", extra=_chatglm
    ),
    "glm4": GgufFamily("Glm4ForCausalLM"),
    "internlm2": GgufFamily("LlamaForCausalLM", True),
    "baichuan": GgufFamily("LlamaForCausalLM", True, extra=_baichuan),
    # llama.cpp does neither, and no key has the length from which on.
    "qwen": GgufFamily("QWenLMHeadModel", extra=lambda values: {"use_dynamic_ntk": False, "use_logn_attn": False}),
    "stablelm": GgufFamily("StableLmForCausalLM", extra=_stablelm),
    "starcoder": GgufFamily(
        "GPTBigCodeForCausalLM", extra=lambda values: {"multi_query": values.config.get("num_key_value_heads") == 1}
    ),
    "starcoder2": GgufFamily(
        "Starcoder2ForCausalLM", extra=lambda values: {"use_bias": values.config["attention_bias"]}
    ),
    "phi2": GgufFamily("PhiForCausalLM"),
    "gpt2": GgufFamily("GPT2LMHeadModel", done=frozenset(["transposed"])),
    "gptneox": GgufFamily(
        "GPTNeoXForCausalLM",
        done=_ORDERED,
        extra=lambda values: {"use_parallel_residual": bool(values.get("use_parallel_residual", True))},
    ),
    "falcon": GgufFamily(
        "FalconForCausalLM",
        done=_ORDERED,
        extra=_falcon,
        parallel_norms={"input_layernorm": "attn_norm_2", "post_attention_layernorm": "attn_norm"},
    ),
    "bloom": GgufFamily("BloomForCausalLM", done=_ORDERED),
    "mpt": GgufFamily("MptForCausalLM", extra=_mpt),
}
