"""Keys of ``config.json`` that only some architectures of llama.cpp have, from a GGUF file's values."""

from collections.abc import Callable
from typing import Any

from tinychat.checkpoint.gguf_mamba import hybrid_layers, read_bamba
from tinychat.checkpoint.gguf_values import FULL, SLIDING, Config, GgufValues, positive, present
from tinychat.errors import CheckpointError, UnsupportedModelError

SIGMOID = 2  # of ``expert_gating_func``
Extra = Callable[[GgufValues], Config]
"""Called with a file's values; returns more keys of ``config.json``."""


def minicpm(values: GgufValues) -> Config:
    """Return the keys of MiniCPM."""
    # Older files have none of the keys: they are of the first model.
    layers = positive(values.config.get("num_hidden_layers"), 40)
    return multipliers(values, 12.0, 1.4 / layers**0.5, positive(values.config.get("hidden_size"), 256) / 256)


def multipliers(values: GgufValues, embedding: float, residual: float, logits: float) -> Config:
    """Return Granite's multipliers, by default those given."""
    return {
        "embedding_multiplier": values.get("embedding_scale", embedding),
        "residual_multiplier": values.get("residual_scale", residual),
        "logits_scaling": values.get("logit_scale", logits),
        "attention_multiplier": values.number("attention.scale", positive(values.config.get("head_dim"), 64) ** -0.5),
    }


def granite_moe(values: GgufValues) -> Config:
    """Return the keys of Granite's mixtures."""
    shared = values.get("expert_shared_feed_forward_length", 0)
    return {**multipliers(values, 1.0, 1.0, 1.0), "shared_intermediate_size": shared}


def granite_hybrid(values: GgufValues) -> Config:
    """Return the keys of Granite 4.0-H and of Bamba."""
    found = {**granite_moe(values), **read_bamba(values), **hybrid_layers(values)}
    if not values.get("expert_count"):
        found |= {"num_experts": 0, "shared_intermediate_size": values.config.get("intermediate_size")}
    return found


def ministral3(values: GgufValues) -> Config:
    """Return the keys of Ministral 3."""
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


def stablelm(values: GgufValues) -> Config:
    """Return the keys of StableLM."""
    return {
        "use_qkv_bias": values.config["attention_bias"],
        "use_parallel_residual": bool(values.get("use_parallel_residual", False)),
        "qk_layernorm": values.has("attn_q_norm.weight"),
    }


def falcon(values: GgufValues) -> Config:
    """Return the keys of Falcon."""
    is_new = values.config.get("num_key_value_heads", 1) != 1
    norms = {"num_ln_in_parallel_attn": 2 if values.has("attn_norm_2.weight") else 1} if is_new else {}
    return {"new_decoder_architecture": is_new, "bias": values.config["attention_bias"], **norms}


def mpt(values: GgufValues) -> Config:
    """Return the keys of MPT."""
    largest = values.number("attention.max_alibi_bias", 0)
    attention = {
        "alibi": bool(largest),
        "alibi_bias_max": round(largest) or 8,
        "clip_qkv": values.get("attention.clamp_kqv"),
        "qk_ln": values.has("attn_q_norm.weight"),
    }
    return {"attn_config": attention, "no_bias": not (values.config["attention_bias"] or values.config["mlp_bias"])}


def nomic_moe(values: GgufValues) -> Config:
    """Return the keys of Nomic BERT with experts; the vector that is added to what these give is in no file."""
    return {
        "activation_function": "gelu",
        "qkv_proj_bias": values.config["attention_bias"],
        "mlp_fc1_bias": values.config["mlp_bias"],
        "mlp_fc2_bias": values.config["mlp_bias"],
        "moe_every_n_layers": values.get("moe_every_n_layers", 2),
        "shifted_experts": False,
    }


def chatglm(values: GgufValues) -> Config:
    """Return the keys of ChatGLM."""
    return {
        "multi_query_attention": True,
        "add_qkv_bias": values.config["attention_bias"],
        "rope_ratio": positive(values.config.get("rope_theta"), 1e4) / 1e4,
    }


def baichuan(values: GgufValues) -> Config:
    """Refuse Baichuan of 13B."""
    if values.config.get("num_hidden_layers") == 40:
        what = "Baichuan of 13B is not read from GGUF files; use the checkpoint that it was made of"
        raise UnsupportedModelError(f"{values.source}: {what}")
    return {}


def qwen_moe(values: GgufValues) -> Config:
    """Return the keys of Qwen's mixtures."""
    found = {
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": values.get("expert_shared_feed_forward_length"),
        # No key has it: llama.cpp has it by the architecture.
        "norm_topk_prob": not values.has("ffn_gate_inp_shexp.weight"),
    }
    return {**present(found), "qkv_bias": values.config["attention_bias"]}


def qwen3_5(values: GgufValues) -> Config:
    """Return the keys of Qwen3.5."""
    heads = values.get("ssm.time_step_rank")
    inner = values.number("ssm.inner_size", 0)
    found = {
        "num_hidden_layers": values.layers(),
        "full_attention_interval": values.get("full_attention_interval", 4),
        "linear_conv_kernel_dim": values.get("ssm.conv_kernel"),
        "linear_key_head_dim": values.get("ssm.state_size"),
        "linear_num_key_heads": values.get("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": int(inner / positive(heads, 1)),
    }
    return present(found)


def qwen3_5_moe(values: GgufValues) -> Config:
    """Return the keys of Qwen3.5's mixtures."""
    return {**qwen3_5(values), **qwen_moe(values)}


def sigmoid_experts(values: GgufValues) -> Config:
    """Return the keys of experts that sigmoids choose."""
    dense = int(values.number("leading_dense_block_count", 0))
    found = {
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
    return present(found)


def ling2(values: GgufValues) -> Config:
    """Return the keys of Ling 2.0."""
    return {
        **sigmoid_experts(values),
        "n_group": values.get("expert_group_count", 1),
        "num_hidden_layers": values.layers(),
    }


def phi_moe(values: GgufValues) -> Config:
    """Return the keys of Phi-MoE, with the checkpoint's factor of long sequences: llama.cpp computes another one."""
    found: dict[str, Any] = {"lm_head_bias": "output.bias" in values.tensors}
    rope = values.config.get("rope_scaling")
    return found | ({"rope_scaling": {**rope, "attention_factor": 1.243163121016122}} if rope else {})


def ernie4_5_moe(values: GgufValues) -> Config:
    """Return the keys of ERNIE 4.5 with experts."""
    found = {
        "moe_intermediate_size": values.get("expert_feed_forward_length"),
        "moe_num_shared_experts": values.get("expert_shared_count", 0),
        "moe_layer_start_index": values.get("leading_dense_block_count"),
        "moe_layer_interval": values.get("interleave_moe_layer_step"),
    }
    return present(found)


def glm4_moe(values: GgufValues) -> Config:
    """Return the keys of GLM-4.5."""
    return {
        **sigmoid_experts(values),
        "use_qk_norm": values.has("attn_q_norm.weight"),
        "num_hidden_layers": values.layers(),
    }


def deepseek2_architecture(values: GgufValues) -> str:
    """Return the architecture of a file of latent attention."""
    if not values.get("expert_count"):
        return "YoutuForCausalLM"
    # Not every file says how experts are chosen.
    is_v3 = any(name.endswith(".exp_probs_b.bias") for name in values.tensors)
    return "DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"


def deepseek2(values: GgufValues) -> Config:
    """Return the keys of latent attention."""
    rotated, scaling = values.get("rope.dimension_count"), values.config.get("rope_scaling")
    found = {
        **(sigmoid_experts(values) if values.get("expert_count") else {}),
        "num_hidden_layers": values.layers(),
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


def mistral4(values: GgufValues) -> Config:
    """Return the keys of Mistral Small 4; not every file says how queries grow."""
    magnitude = 10 * values.number("rope.scaling.yarn_log_multiplier", 0.1)
    rope = ministral3(values)["rope_parameters"] | {"mscale": magnitude, "mscale_all_dim": magnitude}
    rope["llama_4_scaling_beta"] = values.get("attention.temperature_scale", 0.1)
    return {**deepseek2(values), "rope_parameters": rope, "rope_scaling": None}


def minicpm3(values: GgufValues) -> Config:
    """Return the keys of MiniCPM 3, whose multipliers llama.cpp has by the architecture."""
    return {**deepseek2(values), "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def afmoe(values: GgufValues) -> Config:
    """Return the keys of AFMoE, whose embeddings llama.cpp always multiplies."""
    return {**sigmoid_experts(values), **values.windows(4), "mup_enabled": True}


def cohere2_moe(values: GgufValues) -> Config:
    """Return the keys of Command A+; with an epsilon of RMS norms, the file's other one means nothing."""
    width, dense = values.get("expert_feed_forward_length"), values.tensors.get("blk.0.ffn_up.weight")
    return {
        **values.windows(4),
        "num_hidden_layers": values.layers(),
        "moe_intermediate_size": width,
        "intermediate_size": dense[0] if dense else width,
        "first_k_dense_replace": values.get("leading_dense_block_count", 0),
        "expert_selection_fn": "sigmoid" if values.get("expert_gating_func", SIGMOID) == SIGMOID else "softmax",
        "norm_topk_prob": bool(values.get("expert_weights_norm", False)),
        "num_shared_experts": values.get("expert_shared_count", 0),
        "own_rms_eps": values.get("attention.layer_norm_rms_epsilon"),
    }


def muse_glimmer(values: GgufValues) -> Config:
    """Return the keys of Muse Glimmer; the file has the factor of queries as gains of their norm."""
    name, windows = "blk.0.attn_q_norm.weight", values.windows(4)
    gains = {*(values.vector(name) or [])}
    if len(gains) != 1:
        raise CheckpointError(f"{values.source}: {name} does not hold one number for all channels: use another file")
    theta = values.config.get("rope_theta", 1e4)
    bases = [theta if kind == SLIDING else 0.0 for kind in windows.get("layer_types", [])]
    return {**windows, "layer_rope_theta": bases or None, "qk_scale_factor": gains.pop()}


def smallthinker(values: GgufValues) -> Config:
    """Return the keys of SmallThinker; with windows, every fourth layer has none, from the first on, nor a rotation."""
    window = values.config.get("sliding_window") or None
    slides = [int(kind == SLIDING) for kind in values.layer_types(4, full_first=True)]
    return {
        "sliding_window_layout": slides if window else None,
        "rope_layout": slides if window else None,
        "moe_primary_router_apply_softmax": values.get("expert_gating_func", SIGMOID) != SIGMOID,
    }


def laguna(values: GgufValues) -> Config:
    """Return the keys of Laguna, of whose layers every fourth, from the first on, has no window."""
    heads, dense = values.listed("attention.head_count"), int(values.number("leading_dense_block_count", 0))
    window, head_dim = values.config.get("sliding_window") or None, positive(values.config.get("head_dim"), 128)
    theta, types = values.config.get("rope_theta"), values.layer_types(4 if window else 1, full_first=True)
    if values.get("expert_gating_func") not in (None, SIGMOID):
        raise UnsupportedModelError(f"{values.source}: experts of Laguna that no sigmoids choose are not supported")
    gates = values.tensors.get("blk.0.attn_gate.weight")
    full = {
        **(values.config.get("rope_scaling") or {"rope_type": "default"}),
        "rope_theta": theta,
        "partial_rotary_factor": values.config.get("partial_rotary_factor"),
        # The checkpoint's. llama.cpp takes 1 + 0.1 ln(factor) instead.
        "attention_factor": values.get("rope.scaling.yarn_attn_factor"),
    }
    sliding = {
        "rope_theta": values.get("rope.freq_base_swa", theta),
        "partial_rotary_factor": values.number("rope.dimension_count_swa", head_dim) / head_dim,
    }
    return {
        **sigmoid_experts(values),
        "num_attention_heads": heads[0] if heads else None,
        "num_attention_heads_per_layer": heads,
        # Models of another size, under the same name, have gates for each channel.
        "gating": "per-head" if gates is None or not heads or gates[0] == heads[0] else "per-element",
        "sliding_window": window,
        "layer_types": types,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(len(types))],
        "shared_expert_intermediate_size": values.get("expert_shared_feed_forward_length"),
        "rope_scaling": None,
        "rope_parameters": {FULL: full, SLIDING: sliding},
    }


def kimi_linear(values: GgufValues) -> Config:
    """Return the keys of Kimi Linear."""
    found = {
        **deepseek2(values),
        "linear_num_heads": values.config.get("num_attention_heads"),
        "linear_head_dim": values.get("kda.head_dim"),
        "linear_conv_kernel_dim": values.get("ssm.conv_kernel"),
        # No key has it: llama.cpp has it by the architecture.
        "norm_topk_prob": True,
    }
    heads = values.config.get("num_key_value_heads")
    if isinstance(heads, list):
        # Layers without keys have states.
        found["layer_types"] = [FULL if count else "linear_attention" for count in heads]
    return found


def ling3(values: GgufValues) -> Config:
    """Return the keys of Ling 3.0, among whose layers a file counts blocks of multi-token prediction."""
    found = {**kimi_linear(values), "norm_topk_prob": bool(values.get("expert_weights_norm", False))}
    if "layer_types" in found:
        found["layer_types"] = found["layer_types"][: found["num_hidden_layers"]]
    others = {
        "short_conv_kernel_size": values.get("ssm.conv_kernel"),
        "kda_safe_gate": values.get("kda.safe_gate"),
        "kda_lower_bound": values.get("kda.gate_lower_bound"),
        "expert_swiglu_limit_list": values.raw("swiglu_clamp_exp"),
        "share_expert_swiglu_limit_list": values.raw("swiglu_clamp_shexp"),
    }
    return found | present(others)


def gpt_oss(values: GgufValues) -> Config:
    """Return the keys of gpt-oss."""
    scaling = values.config.get("rope_scaling")
    # Written nowhere: the checkpoint's bounds are not rounded to whole channels.
    return {"rope_scaling": {**scaling, "truncate": False}} if isinstance(scaling, dict) else {}


def lfm2(values: GgufValues) -> Config:
    """Return the keys of LFM2."""
    found: dict[str, Any] = {"block_auto_adjust_ff_dim": False, "conv_L_cache": values.get("shortconv.l_cache")}
    heads = values.config.get("num_key_value_heads")
    if isinstance(heads, list) and heads and all(type(count) is int for count in heads):
        # Layers without keys have convolutions.
        found["layer_types"] = [FULL if count > 0 else "conv" for count in heads]
        found["num_key_value_heads"] = max(heads)
    return found
