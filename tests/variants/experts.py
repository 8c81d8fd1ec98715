"""Variants of the families whose MLPs are mixtures of experts."""

from variants.common import COMMON, DELTA_NET, YARN, Variant, longrope
from variants.rms_norm import GEMMA4, GRANITE_HYBRID, HUNYUAN

MIXTRAL = COMMON | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_key_value_heads": 2,
    "intermediate_size": 52,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
}
# Sums of probabilities over some logits, and over one.
PHIMOE = MIXTRAL | {
    "architectures": ["PhiMoEForCausalLM"],
    "model_type": "phimoe",
    "num_local_experts": 9,
    "router_jitter_noise": 0.3,
    "lm_head_bias": True,
}
QWEN2_MOE = COMMON | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_key_value_heads": 2,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 52,
    "shared_expert_intermediate_size": 76,
}
QWEN3_MOE = COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "num_experts": 19,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 52,
    "norm_topk_prob": True,
}
OLMOE = COMMON | {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "num_key_value_heads": 2,
    "intermediate_size": 52,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
GRANITE_MOE = {key: value for key, value in MIXTRAL.items() if key != "num_local_experts"} | {
    "architectures": ["GraniteMoeForCausalLM"],
    "model_type": "granitemoe",
    "num_local_experts": 9,
    "num_experts_per_tok": 4,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
ERNIE4_5_MOE = COMMON | {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "num_key_value_heads": 2,
    "moe_intermediate_size": 52,
    "moe_num_experts": 19,
    "moe_k": 4,
    "moe_num_shared_experts": 2,
    "pad_token_id": 0,
    "rope_theta": 5e5,
}
GPT_OSS = COMMON | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 52,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 23,
    "swiglu_limit": 1.5,
    "rope_theta": 1.5e5,
    "rope_scaling": YARN | {"truncate": False},
    "pad_token_id": 0,
}
MELLUM = QWEN3_MOE | {
    "architectures": ["MellumForCausalLM"],
    "model_type": "mellum",
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "rope_parameters": {
        "full_attention": {"rope_theta": 5e4, **YARN},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    },
}
SIGMOIDS = COMMON | {
    "num_key_value_heads": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 52,
    "routed_scaling_factor": 1.7,
    "pad_token_id": 0,
}
GLM4_MOE = SIGMOIDS | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "head_dim": 40,
    "n_routed_experts": 19,
    "n_shared_experts": 2,
    "attention_bias": True,
    "use_qk_norm": True,
}
DOTS1 = SIGMOIDS | {
    "architectures": ["Dots1ForCausalLM"],
    "model_type": "dots1",
    "n_routed_experts": 18,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "sliding_window": 21,
    "max_window_layers": 1,
}
MINIMAX_M2 = {key: value for key, value in SIGMOIDS.items() if key[:3] not in ("moe", "rou")} | {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "intermediate_size": 52,
    "num_local_experts": 11,
    "head_dim": 40,
    "rotary_dim": 20,
}
LFM2_MOE = SIGMOIDS | {
    "architectures": ["Lfm2MoeForCausalLM"],
    "model_type": "lfm2_moe",
    "num_hidden_layers": 4,
    "num_experts": 9,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
}
SOLAR_OPEN = {key: value for key, value in SIGMOIDS.items() if key != "intermediate_size"} | {
    "architectures": ["SolarOpenForCausalLM"],
    "model_type": "solar_open",
    "head_dim": 40,
    "n_routed_experts": 12,
    "n_group": 3,
    "topk_group": 2,
}
SARVAM = SIGMOIDS | {
    "architectures": ["SarvamMoEForCausalLM"],
    "model_type": "sarvam_moe",
    "head_dim": 40,
    "num_experts": 12,
    "num_shared_experts": 2,
}

QWEN3_NEXT = (
    QWEN2_MOE
    | DELTA_NET
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "linear_value_head_dim": 64,
        "pad_token_id": 0,
    }
)
QWEN3_5_MOE = QWEN3_NEXT | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
# What `DELTA_NET` has, and a window in the second layer.
LARA_MINI = {key: value for key, value in QWEN3_NEXT.items() if key != "intermediate_size"} | {
    "architectures": ["LaraMiniForCausalLM"],
    "model_type": "lara_mini",
    "sliding_window": 24,
    "tie_word_embeddings": True,
}
GEMMA4_MOE = {key: value for key, value in GEMMA4.items() if key not in ("use_double_wide_mlp", "layer_types")} | {
    "num_hidden_layers": 3,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "enable_moe_block": True,
    "num_experts": 11,
    "top_k_experts": 3,
    "moe_intermediate_size": 52,
}
GRANITE_HYBRID_MOE = GRANITE_HYBRID | {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "intermediate_size": 52,
    "shared_intermediate_size": 76,
    "time_step_limit": [0.0, 1e9],
}

JAMBA = COMMON | {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 16,
    "mamba_dt_rank": 16,
    "pad_token_id": 0,
    "use_mamba_kernels": False,
}

NEMOTRON_H = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 96,
    "intermediate_size": 172,
    "hybrid_override_pattern": "EM-M*E",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "mlp_hidden_act": "relu2",
    "vocab_size": 517,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "layer_norm_epsilon": 1e-4,
    "mamba_num_heads": 6,
    "mamba_head_dim": 48,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_min": 0.2,
    "n_routed_experts": 18,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 60,
    "moe_shared_expert_intermediate_size": 108,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}

HUNYUAN_MOE = HUNYUAN | {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "model_type": "hunyuan_v1_moe",
    "intermediate_size": 52,
    "num_experts": 7,
    "moe_topk": 3,
}

AFMOE = COMMON | {
    "architectures": ["AfmoeForCausalLM"],
    "model_type": "afmoe",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 24,
    "num_dense_layers": 1,
    "moe_intermediate_size": 52,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "route_scale": 1.7,
    "mup_enabled": True,
    "pad_token_id": 0,
}
COHERE2_MOE = COMMON | {
    "architectures": ["Cohere2MoeForCausalLM"],
    "model_type": "cohere2_moe",
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 52,
    "prefix_dense_intermediate_size": 172,
    "first_k_dense_replace": 1,
    "sliding_window": 24,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "logit_scale": 0.5,
    "pad_token_id": 0,
}
LAGUNA = COMMON | {
    "architectures": ["LagunaForCausalLM"],
    "model_type": "laguna",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 24,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "num_attention_heads_per_layer": [4, 6, 6, 4],
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 52,
    "shared_expert_intermediate_size": 76,
    "moe_routed_scaling_factor": 1.7,
    "rope_parameters": {
        "full_attention": YARN | {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "attention_factor": 1.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
    "pad_token_id": 0,
}
EXAONE_MOE = SIGMOIDS | {
    "architectures": ["ExaoneMoeForCausalLM"],
    "model_type": "exaone_moe",
    "head_dim": 40,
    "sliding_window": 25,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_experts": 18,
    "num_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
}
ZAYA = COMMON | {
    "architectures": ["ZayaForCausalLM"],
    "model_type": "zaya",
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 5,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 52,
    "router_hidden_size": 40,
    "sliding_window": 25,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "rope_parameters": {
        "hybrid": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
    "pad_token_id": 0,
}
FLINT = QWEN3_MOE | {
    "architectures": ["FlintForCausalLM"],
    "model_type": "flint",
    "num_hidden_layers": 5,
    "num_experts": 12,
    "shared_expert_intermediate_size": 76,
    "sliding_window": 25,
    "pad_token_id": 0,
}
KOLIBRI1 = {key: value for key, value in QWEN3_MOE.items() if key != "intermediate_size"} | {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "num_hidden_layers": 5,
    "shared_expert_intermediate_size": 76,
    "sliding_window": 25,
    "pad_token_id": 0,
}
FLEX_OLMO = OLMOE | {"architectures": ["FlexOlmoForCausalLM"], "model_type": "flex_olmo", "pad_token_id": 0}

VARIANTS = [
    Variant("phi-moe", PHIMOE, "bfloat16"),
    # transformers takes the short factors for long sequences, too, unlike the published code and llama.cpp.
    Variant(
        "phi-moe-long",
        PHIMOE
        | {"attention_bias": True, "sliding_window": 27, "original_max_position_embeddings": 128}
        | {
            "rope_scaling": longrope(12, short_mscale=1.24, long_mscale=1.24, original_max_position_embeddings=128)
            | {"long_factor": longrope(12)["short_factor"]}
        },
    ),
    Variant("mixtral", MIXTRAL | {"sliding_window": 27}, "bfloat16", "safetensors-sharded"),
    Variant("qwen2-moe", QWEN2_MOE | {"use_sliding_window": True, "sliding_window": 22}, "bfloat16"),
    Variant("qwen3-moe", QWEN3_MOE | {"tie_word_embeddings": True}, "bfloat16"),
    # The first layer has an MLP, and so has the last.
    Variant("qwen3-moe-some", QWEN3_MOE | {"norm_topk_prob": False, "decoder_sparse_step": 2, "attention_bias": True}),
    Variant("olmoe", OLMOE, "float16"),
    # Columns of a state in whole tiles; the last layer has an MLP.
    Variant("qwen3-next", QWEN3_NEXT | {"mlp_only_layers": [3]}, "bfloat16", "safetensors-sharded"),
    # Experts stacked, rows of gates before those of their inputs.
    Variant("qwen3.5-moe", QWEN3_5_MOE, "bfloat16"),
    Variant("mellum", MELLUM, "bfloat16"),
    # Experts and an MLP in each layer, with norms of their own.
    Variant("gemma4-moe", GEMMA4_MOE, "bfloat16"),
    Variant("glm4-moe", GLM4_MOE, "bfloat16"),
    # Experts in groups; the layers behind the first have a window.
    Variant("dots1", DOTS1, "bfloat16"),
    Variant("minimax-m2", MINIMAX_M2, "bfloat16"),
    Variant("solar-open", SOLAR_OPEN, "bfloat16"),
    Variant("sarvam-30b", SARVAM, "bfloat16", "safetensors-sharded"),
    Variant("lara-mini", LARA_MINI, "bfloat16"),
    # Some convolutions have experts behind them.
    Variant("lfm2-moe", LFM2_MOE, "bfloat16"),
    Variant("granite-moe", GRANITE_MOE, "bfloat16", "safetensors-sharded"),
    Variant(
        "granite-moe-shared",
        GRANITE_MOE
        | {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
        | {"shared_intermediate_size": 76, "attention_bias": True, "tie_word_embeddings": True},
    ),
    Variant(
        "granite-moe-swa",
        GRANITE_MOE
        | {"architectures": ["GraniteMoeSWAForCausalLM"], "model_type": "granitemoe_swa", "sliding_window": 23}
        | {"shared_intermediate_size": 76, "layer_rope_theta": [0, 5e3, 5e3]},
        "bfloat16",
        "safetensors-sharded",
    ),
    # Experts and MLPs; attention in the second layer.
    Variant("jamba", JAMBA, "bfloat16"),
    Variant(
        "jamba-dense",
        JAMBA
        | {
            "num_experts": 1,
            "attn_layer_offset": 2,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    Variant("ernie4.5-moe", ERNIE4_5_MOE, "bfloat16"),
    # The gates of experts, and of the one that all tokens pass, in one tensor with their inputs.
    Variant("granite-hybrid-moe", GRANITE_HYBRID_MOE, "bfloat16"),
    # Gates and what they let through beyond the limit.
    Variant("gpt-oss", GPT_OSS, "bfloat16", "safetensors-sharded"),
    # Every kind of layer; experts read and give a latent, steps are above a least size.
    Variant("nemotron-h", NEMOTRON_H | {"moe_latent_size": 56}, "bfloat16"),
    # Without latents and dense MLPs; the last layer is attention.
    Variant(
        "nemotron3",
        {key: value for key, value in NEMOTRON_H.items() if key != "hybrid_override_pattern"}
        | {"layers_block_type": ["mamba", "moe", "attention", "moe", "mamba", "attention"], "use_bias": True},
        "bfloat16",
        "safetensors-sharded",
    ),
    Variant("hunyuan-moe", HUNYUAN_MOE | {"tie_word_embeddings": True, "attention_bias": True}, "bfloat16"),
    # Experts in layers that norm what they give.
    Variant("afmoe", AFMOE, "bfloat16"),
    # Experts beside attention; a first layer that rotates without a window.
    Variant("cohere2-moe", COHERE2_MOE, "bfloat16", "safetensors-sharded"),
    Variant(
        "cohere2-moe-sigmoid",
        {key: value for key, value in COHERE2_MOE.items() if key != "first_k_dense_replace"}
        | {"num_hidden_layers": 3, "rms_norm_eps": 1e-4, "expert_selection_fn": "sigmoid", "norm_topk_prob": False}
        | {"shared_expert_combination_strategy": "sum", "attention_bias": True, "tie_word_embeddings": False}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    # More query heads in layers with a window; of each head of the others a half is rotated.
    Variant("laguna", LAGUNA, "bfloat16"),
    Variant(
        "laguna-plain",
        {key: value for key, value in LAGUNA.items() if key not in ("layer_types", "num_attention_heads_per_layer")}
        | {"num_attention_heads_per_layer": [6, 4, 4, 6]}
        | {"gating": "per-head", "attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
    ),
    # Groups of experts behind an MLP; layers without a window do not rotate.
    Variant("exaone-moe", EXAONE_MOE, "bfloat16"),
    # Sigmoids without biases; sinks; layers without a window do not rotate.
    Variant("flint", FLINT, "bfloat16"),
    Variant("flint-small", FLINT | {"mlp_only_layers": [2], "attention_bias": True, "norm_topk_prob": False}),
    # Biases of logits; norms before and after.
    Variant("kolibri1", KOLIBRI1, "bfloat16"),
    Variant(
        "kolibri1-plain", KOLIBRI1 | {"norm_topk_prob": False, "num_hidden_layers": 2, "tie_word_embeddings": True}
    ),
    # Convolved queries and keys; one expert for a token, or none.
    Variant("zaya", ZAYA, "bfloat16"),
    Variant(
        "zaya-plain",
        {key: value for key, value in ZAYA.items() if key not in ("layer_types", "sliding_window", "rope_parameters")}
        | {"tie_word_embeddings": False, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 4},
    ),
    Variant("flex-olmo", FLEX_OLMO | {"norm_topk_prob": True}, "bfloat16"),
]
