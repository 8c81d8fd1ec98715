"""Variants of the families with latent attention."""

from variants.common import COMMON, YARN, Variant, longrope

YOUTU = COMMON | {
    "architectures": ["YoutuForCausalLM"],
    "model_type": "youtu",
    "num_key_value_heads": 4,
    "q_lora_rank": 56,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 16,
    "pad_token_id": 0,
}
EXPERTS = {
    "moe_intermediate_size": 52,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
}
DEEPSEEK_V2 = (
    YOUTU
    | EXPERTS
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    }
)
DEEPSEEK_V3 = (
    YOUTU
    | EXPERTS
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    }
)
GLM4_MOE_LITE = (
    YOUTU
    | EXPERTS
    | {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "n_shared_experts": 1,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    }
)
MISTRAL4 = {key: value for key, value in (YOUTU | EXPERTS).items() if key != "rope_theta"} | {
    "architectures": ["Mistral4ForCausalLM"],
    "model_type": "mistral4",
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "rope_scaling": None,
    "rope_parameters": YARN
    | {"rope_theta": 1e5, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
    | {"original_max_position_embeddings": 16},
}
# Keys as the published files have them.
SARVAM_MLA = {
    key: value for key, value in (YOUTU | EXPERTS).items() if key not in ("n_routed_experts", "n_shared_experts")
} | {
    "architectures": ["SarvamMLAForCausalLM"],
    "model_type": "sarvam_mla",
    "q_lora_rank": None,
    "num_experts": 12,
    "num_shared_experts": 2,
    "rope_scaling": YARN | {"type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
}
del SARVAM_MLA["rope_scaling"]["rope_type"]
MINICPM3 = YOUTU | {
    "architectures": ["MiniCPM3ForCausalLM"],
    "model_type": "minicpm3",
    "v_head_dim": 32,
    "scale_emb": 3,
    "scale_depth": 1.1,
    "dim_model_base": 64,
    "rope_scaling": longrope(6, original_max_position_embeddings=128),
}

KIMI_LINEAR = COMMON | {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 16,
    "linear_attn_config": {
        "full_attn_layers": [3],
        "kda_layers": [1, 2, 4],
        "head_dim": 48,
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 52,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "num_expert_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "rms_norm_eps": 1e-5,
    "model_max_length": 256,
    "pad_token_id": 0,
}
del KIMI_LINEAR["max_position_embeddings"]
# Published files say which part of the heads is rotated as if these had no latents.
LING3 = COMMON | {
    "architectures": ["BailingMoeV3ForCausalLM"],
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "head_dim": 48,
    "partial_rotary_factor": 0.5,
    "rope_theta": 6e5,
    "rms_norm_eps": 1e-6,
    "q_lora_rank": None,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 12,
    "v_head_dim": 16,
    "layer_group_size": 2,
    "short_conv_kernel_size": 4,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "no_kda_lora": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 52,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
    "pad_token_id": 0,
}
# Of the last layers; 0 is none.
LIMITS = {"expert_swiglu_limit_list": [0, 0, 0.3, 0, 0.2], "share_expert_swiglu_limit_list": [0, 0, 0, 0.4, 0.3]}

VARIANTS = [
    Variant("youtu", YOUTU | {"attention_bias": True}, "bfloat16", "safetensors-sharded"),
    # Queries without a latent, halves that are rotated together, stretched positions.
    Variant(
        "youtu-halves",
        YOUTU
        | {
            "q_lora_rank": None,
            "rope_interleave": False,
            "tie_word_embeddings": False,
            "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    Variant("deepseek-v2", DEEPSEEK_V2, "bfloat16"),
    Variant("deepseek-v3", DEEPSEEK_V3, "bfloat16", "safetensors-sharded"),
    Variant("mistral4", MISTRAL4, "bfloat16"),
    Variant("glm4-moe-lite", GLM4_MOE_LITE, "bfloat16"),
    Variant("sarvam-105b", SARVAM_MLA, "bfloat16"),
    Variant("minicpm3", MINICPM3, "bfloat16"),
    Variant("kimi-linear", KIMI_LINEAR, "bfloat16", "safetensors-sharded"),
    Variant("ling-3.0-flash", LING3 | LIMITS, "bfloat16", "safetensors-sharded"),
    Variant("ling-3.0-tiny", LING3 | {"q_lora_rank": 36, "num_hidden_layers": 4}, "bfloat16"),
]
