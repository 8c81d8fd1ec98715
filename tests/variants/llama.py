"""Variants of Llama and of the families nearest to it."""

from variants.common import COMMON, LLAMA3_ROPE, YARN, Variant, longrope

# Whose tensors `families` lists.
LISTED = ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3")
LLAMA = COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5}
MISTRAL = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}
QWEN2 = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 40}
PHI3 = COMMON | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rms_norm_eps": 1e-5, "pad_token_id": 0}
SMOLLM3 = COMMON | {
    "architectures": ["SmolLM3ForCausalLM"],
    "model_type": "smollm3",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e4,
    "no_rope_layer_interval": 2,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}

# Its makers' keys.
EXAONE = {key: value for key, value in COMMON.items() if key not in ("num_hidden_layers", "hidden_act")} | {
    "architectures": ["ExaoneForCausalLM"],
    "model_type": "exaone",
    "num_layers": 3,
    "activation_function": "silu",
    "layer_norm_epsilon": 1e-4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "rope_scaling": LLAMA3_ROPE,
    "rope_theta": 1e6,
    "pad_token_id": 0,
}
INTERNLM3 = COMMON | {
    "architectures": ["InternLM3ForCausalLM"],
    "model_type": "internlm3",
    "head_dim": 40,
    "qkv_bias": True,
    "bias": True,
    "pad_token_id": 0,
    "rope_scaling": {"type": "linear", "factor": 6.0},
}
IQUEST_CODER = COMMON | {
    "architectures": ["IQuestCoderForCausalLM"],
    "model_type": "iquestcoder",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "rope_theta": 5e5,
}

VARIANTS = [
    Variant("exaone", EXAONE, "bfloat16"),
    Variant("internlm3", INTERNLM3, "bfloat16"),
    Variant("iquest-coder", IQUEST_CODER, "bfloat16"),
    Variant("llama1-mha", LLAMA | {"rms_norm_eps": 1e-6}, "float16", "bin-sharded"),
    Variant("llama2-mha", LLAMA | {"num_key_value_heads": 4, "rope_scaling": None}, "float16", "bin"),
    Variant("llama2-gqa", LLAMA | {"num_key_value_heads": 2}, "bfloat16", "safetensors-sharded"),
    Variant("tinyllama", LLAMA | {"num_attention_heads": 8, "num_key_value_heads": 1, "hidden_size": 192}),
    Variant(
        "smollm2",
        LLAMA
        | {
            "hidden_size": 144,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_theta": 1e5,
        },
        "bfloat16",
    ),
    Variant("codellama", LLAMA | {"rope_theta": 1e6, "vocab_size": 531}, "bfloat16", "bin"),
    Variant("llama3", LLAMA | {"num_key_value_heads": 2, "rope_theta": 5e5}, "bfloat16"),
    Variant(
        "llama3.1",
        LLAMA | {"num_key_value_heads": 2, "rope_scaling": LLAMA3_ROPE, "eos_token_id": [2, 3]},
        "bfloat16",
        "safetensors-sharded",
    ),
    Variant(
        "llama3.2",
        LLAMA
        | {
            "num_key_value_heads": 1,
            "rope_theta": 5e5,
            "rope_scaling": LLAMA3_ROPE | {"factor": 32.0},
            "tie_word_embeddings": True,
        },
        "bfloat16",
    ),
    Variant("llama-linear", LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.5}}, "float16"),
    Variant(
        "llama-dynamic",
        LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
    ),
    Variant("llama-yarn", LLAMA | {"rope_scaling": YARN}),
    Variant("llama-yarn-mscale", LLAMA | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}),
    Variant(
        "llama-yarn-explicit",
        LLAMA
        | {
            "rope_scaling": YARN | {"attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        },
    ),
    Variant("llama-mqa", LLAMA | {"num_key_value_heads": 1}, "float16", "safetensors-sharded"),
    Variant("llama-attention-bias", LLAMA | {"num_key_value_heads": 2, "attention_bias": True}, "bfloat16"),
    Variant("llama-all-biases", LLAMA | {"attention_bias": True, "mlp_bias": True}, "float32", "bin-sharded"),
    Variant("llama-head-dim", LLAMA | {"hidden_size": 88, "head_dim": 24, "num_key_value_heads": 2}),
    # Wide enough for weight groups to share activation scales: four of 512 columns, three of 560.
    Variant(
        "llama-wide",
        LLAMA | {"hidden_size": 512, "intermediate_size": 560, "num_hidden_layers": 2, "num_attention_heads": 8},
        "bfloat16",
    ),
    Variant("mistral", MISTRAL | {"sliding_window": None, "head_dim": 32}, "bfloat16", "safetensors-sharded"),
    Variant("mistral-window", MISTRAL | {"sliding_window": 24, "head_dim": None}, "bfloat16"),
    Variant("qwen2", QWEN2, "bfloat16", "safetensors-sharded"),
    Variant("qwen2-tied", QWEN2 | {"tie_word_embeddings": True}, "float16"),
    Variant(
        "qwen2-window",
        QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    Variant("qwen2-yarn", QWEN2 | {"rope_scaling": {"type": "yarn"} | YARN}, "bfloat16"),
    Variant("qwen3", QWEN3, "bfloat16", "safetensors-sharded"),
    Variant("qwen3-tied", QWEN3 | {"tie_word_embeddings": True, "head_dim": 24}, "bfloat16"),
    Variant("qwen3-bias", QWEN3 | {"attention_bias": True}, "float32", "bin"),
    Variant(
        "qwen3-window",
        QWEN3
        | {
            "use_sliding_window": True,
            "sliding_window": 28,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "float16",
    ),
    Variant("phi3", PHI3 | {"num_key_value_heads": 2, "sliding_window": 30}, "bfloat16", "safetensors-sharded"),
    # 40 tokens have the short factors, 200 the long ones.
    Variant(
        "phi3-longrope", PHI3 | {"rope_scaling": longrope(12), "original_max_position_embeddings": 64}, "float16", "bin"
    ),
    Variant(
        "phi4-mini",
        PHI3
        | {
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.75,
            "rope_scaling": longrope(9, attention_factor=1.1),
            "original_max_position_embeddings": 64,
            "tie_word_embeddings": True,
        },
        "bfloat16",
    ),
    Variant("smollm3", SMOLLM3, "bfloat16", "safetensors-sharded"),
    Variant(
        "smollm3-window",
        SMOLLM3
        | {
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 25,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
]
