"""Variants of the families with RMS norms that go further from Llama."""

from variants.common import COMMON, DELTA_NET, LLAMA3_ROPE, MAMBA, YARN, Variant
from variants.llama import LLAMA

GEMMA = COMMON | {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "num_key_value_heads": 1,
    "head_dim": 40,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
GEMMA2 = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "num_key_value_heads": 2,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 28,
    "sliding_window": 22,
    "attn_logit_softcapping": 2.5,
    "final_logit_softcapping": 1.5,
}
VAULT_GEMMA = GEMMA2 | {"architectures": ["VaultGemmaForCausalLM"], "model_type": "vaultgemma"}
GEMMA3 = GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "sliding_window_pattern": 3,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 5e3,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GEMMA4 = {key: value for key, value in GEMMA.items() if key != "hidden_act"} | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 5,
    "hidden_activation": "gelu_pytorch_tanh",
    "global_head_dim": 56,
    "sliding_window": 22,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "final_logit_softcapping": 1.5,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 517,
}
# More ids than have inputs of layers, and layers with sparse gates beside open ones.
GEMMA3N = {key: value for key, value in GEMMA.items() if key != "hidden_act"} | {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "num_hidden_layers": 5,
    "hidden_size": 80,
    "num_key_value_heads": 2,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 22,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_theta": 1e6,
    "rope_local_base_freq": 5e3,
    "final_logit_softcapping": 1.5,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 500,
    "laurel_rank": 24,
    "activation_sparsity_pattern": [0.8, 0.5, 0.0, 0.9, 0.0],
}
GRANITE = COMMON | {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "num_key_value_heads": 2,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
# Layers of each kind that do not rotate, and a base for each kind.
GRANITE_SWA = GRANITE | {
    "architectures": ["GraniteSWAForCausalLM"],
    "model_type": "granite_swa",
    "num_hidden_layers": 5,
    "sliding_window": 24,
    "layer_rope_theta": [1e6, 5e3, 0, 5e3, 0],
    "tie_word_embeddings": True,
}
HYPERCLOVAX = GRANITE | {
    "architectures": ["HyperCLOVAXForCausalLM"],
    "model_type": "hyperclovax",
    "head_dim": 40,
    "logits_scaling": 0.125,
}
OLMO2 = COMMON | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "num_key_value_heads": 2}
TYPES = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
OLMO3 = OLMO2 | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": 26} | TYPES
EXAONE4 = (
    COMMON
    | {
        "architectures": ["Exaone4ForCausalLM"],
        "model_type": "exaone4",
        "num_key_value_heads": 2,
        "head_dim": 40,
        "sliding_window": 23,
        "sliding_window_pattern": "LG",
        "rope_theta": 1e6,
    }
    | TYPES
)
MINISTRAL3 = COMMON | {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "rope_parameters": {
        "type": "yarn",
        "rope_theta": 1e5,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.4,
    },
}
GLM = COMMON | {
    "architectures": ["GlmForCausalLM"],
    "model_type": "glm",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "pad_token_id": 0,
}
LFM2 = COMMON | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_key_value_heads": 1,
    "num_hidden_layers": 4,
    "intermediate_size": 260,
    "block_multiple_of": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "pad_token_id": 0,
}
LFM3 = COMMON | {
    "architectures": ["Lfm3ForCausalLM"],
    "model_type": "lfm3",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "sliding_window": 21,
    "layer_types": ["sliding_attention", "conv", "full_attention", "conv"],
    "pad_token_id": 0,
}

OLMO_HYBRID = (
    COMMON
    | DELTA_NET
    | {
        "architectures": ["OlmoHybridForCausalLM"],
        "model_type": "olmo_hybrid",
        "linear_num_key_heads": 6,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "pad_token_id": 0,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": None, "rope_type": "default"},
    }
)
QWEN3_5 = (
    COMMON
    | DELTA_NET
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "pad_token_id": 0,
    }
)

GROUPED = COMMON | {"num_key_value_heads": 2, "head_dim": 24}
SEED_OSS = GROUPED | {"architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "head_dim": 40}
ARCEE = COMMON | {
    "architectures": ["ArceeForCausalLM"],
    "model_type": "arcee",
    "num_key_value_heads": 2,
    "hidden_act": "relu2",
    "rope_scaling": YARN,
}
HELIUM = GROUPED | {"architectures": ["HeliumForCausalLM"], "model_type": "helium"}
MINISTRAL = (
    GROUPED | {"architectures": ["MinistralForCausalLM"], "model_type": "ministral", "sliding_window": 25} | TYPES
)
CWM = MINISTRAL | {"architectures": ["CwmForCausalLM"], "model_type": "cwm", "rope_scaling": LLAMA3_ROPE}
ERNIE4_5 = GROUPED | {"architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "use_bias": True}
GRANITE_HYBRID = (
    GRANITE
    | MAMBA
    | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 172,
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "time_step_limit": [0.3, 1.5],
    }
)
BAMBA = (
    COMMON
    | MAMBA
    | {
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "attn_layer_indices": [1, 2],
        "mamba_proj_bias": True,
    }
)
FALCON_H1 = (
    COMMON
    | MAMBA
    | {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_hidden_layers": 3,
        "mamba_d_ssm": 288,
        "rope_theta": 1e11,
        "embedding_multiplier": 5.5,
        "lm_head_multiplier": 0.4,
        "key_multiplier": 0.7,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.6,
        "mlp_multipliers": [0.8, 1.1],
        "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    }
)

HUNYUAN = COMMON | {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "pad_token_id": 0,
    "rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0},
}

NANOCHAT = COMMON | {
    "architectures": ["NanoChatForCausalLM"],
    "model_type": "nanochat",
    "num_key_value_heads": 2,
    "hidden_act": "relu2",
    "pad_token_id": 0,
}

BITNET = COMMON | {
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "num_key_value_heads": 2,
    "hidden_act": "relu2",
    "pad_token_id": 0,
}

APERTUS = COMMON | {
    "architectures": ["ApertusForCausalLM"],
    "model_type": "apertus",
    "num_key_value_heads": 2,
    "hidden_act": "xielu",
    "pad_token_id": 0,
    "rope_scaling": LLAMA3_ROPE,
}

# A vocabulary whose last tokens cannot be written.
APERTUS_1_5 = APERTUS | {
    "architectures": ["Apertus1p5TextForCausalLM"],
    "model_type": "apertus1p5_text",
    "vocab_size": 600,
    "output_vocab_size": 517,
}

_DORY_ROPE = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
}
# Heads that are together wider than the residual stream; the loop begins and ends at no border of windows.
DORY = COMMON | {
    "architectures": ["DoryForCausalLM"],
    "model_type": "dory",
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "sliding_window": 22,
    "initializer_range": 0.1,
    "ngpt_alpha_init": 0.4,
    "n_input_layers": 1,
    "n_output_layers": 1,
}

MUSE_GLIMMER = {key: value for key, value in COMMON.items() if key != "hidden_act"} | {
    "architectures": ["MuseGlimmerForCausalLM"],
    "model_type": "muse_glimmer_text",
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "sliding_window": 22,
    "final_logit_softcapping": 1.5,
    "qk_scale_factor": 2.5,
    "output_multiplier": 0.7,
    "post_norm_eps": 0.3,
}

VARIANTS = [
    Variant("gemma", GEMMA, "bfloat16"),
    # Scores beyond the cap, and layers with and without a window.
    Variant("gemma2", GEMMA2, "bfloat16", "safetensors-sharded"),
    Variant("vaultgemma", VAULT_GEMMA, "bfloat16"),
    Variant("gemma3", GEMMA3, "bfloat16"),
    Variant("gemma3-untied", GEMMA3 | {"tie_word_embeddings": False, "rope_scaling": None}, "float16"),
    Variant("gemma4", GEMMA4, "bfloat16"),
    # No layer reads another's keys, or has inputs of its own; wide heads have keys that are their values.
    Variant(
        "gemma4-large",
        {key: value for key, value in GEMMA4.items() if key not in ("use_double_wide_mlp", "layer_types")}
        | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "num_hidden_layers": 3}
        | {"num_key_value_heads": 2, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        "bfloat16",
        "safetensors-sharded",
    ),
    Variant("gemma3n", GEMMA3N, "bfloat16"),
    Variant("granite", GRANITE | {"attention_bias": True, "mlp_bias": True}, "bfloat16"),
    Variant("granite-swa", GRANITE_SWA, "bfloat16"),
    Variant("granite-swa-one", GRANITE_SWA | {"layer_rope_theta": None, "attention_bias": True}),
    Variant("hyperclovax", HYPERCLOVAX, "bfloat16"),
    Variant("hyperclovax-plain", HYPERCLOVAX | {"attention_multiplier": None, "attention_bias": True}),
    # transformers has no such class; Granite is the same with its multipliers written out.
    Variant(
        "minicpm",
        LLAMA
        | {
            "architectures": ["MiniCPMForCausalLM"],
            "model_type": "minicpm",
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 32,
        },
        "bfloat16",
        theirs=GRANITE
        | {
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "attention_multiplier": 24**-0.5,
            "residual_multiplier": 1.4 / 3**0.5,
            "logits_scaling": 3.0,
        },
    ),
    Variant("olmo2", OLMO2 | {"rope_theta": 5e5}, "bfloat16", "safetensors-sharded"),
    Variant("olmo3", OLMO3 | {"rope_theta": 5e5, "rope_scaling": YARN}, "bfloat16"),
    Variant("exaone4", EXAONE4, "bfloat16"),
    Variant(
        "exaone4-full",
        EXAONE4 | {"sliding_window": None, "tie_word_embeddings": True, "layer_types": ["full_attention"] * 3},
    ),
    Variant("ministral3", MINISTRAL3, "bfloat16"),
    Variant("glm", GLM | {"attention_bias": True}, "bfloat16", "safetensors-sharded"),
    Variant("glm4", GLM | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": False}),
    # Keys as older files have them, and four taps. What is kept of a position takes half a layer of the cache.
    Variant(
        "lfm2-four",
        {key: value for key, value in LFM2.items() if key not in ("layer_types", "intermediate_size")}
        | {"full_attn_idxs": [0, 2], "block_ff_dim": 172, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4}
        | {"num_key_value_heads": 4, "tie_embedding": False},
        "bfloat16",
        "safetensors-sharded",
    ),
    # Here it takes two layers.
    Variant("lfm2", LFM2),
    # The kinds of layers that transformers chooses; heads that are no whole vectors.
    Variant(
        "lfm3-plain",
        {key: value for key, value in LFM3.items() if key != "layer_types"}
        | {"num_hidden_layers": 5, "head_dim": 24, "num_key_value_heads": 1, "tie_word_embeddings": False},
        "bfloat16",
    ),
    Variant("lfm3", LFM3 | {"attention_bias": True}),
    Variant("qwen3.5", QWEN3_5 | {"tie_word_embeddings": True, "attention_bias": True}),
    Variant("olmo-hybrid", OLMO_HYBRID),
    Variant("seed-oss", SEED_OSS, "bfloat16"),
    Variant("arcee", ARCEE, "bfloat16"),
    Variant("helium", HELIUM | {"mlp_bias": True, "attention_bias": True}),
    Variant("ministral", MINISTRAL, "bfloat16"),
    Variant("cwm", CWM, "bfloat16"),
    Variant("ernie4.5", ERNIE4_5, "bfloat16"),
    # Steps beyond the limits.
    Variant("granite-hybrid", GRANITE_HYBRID, "bfloat16"),
    Variant("bamba", BAMBA, "bfloat16", "safetensors-sharded"),
    Variant("falcon-h1", FALCON_H1, "bfloat16"),
    Variant(
        "falcon-h1-normed",
        {key: value for key, value in FALCON_H1.items() if key[-11:] != "multipliers"}
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    # Norms of queries and keys behind the rotation, whose base is stretched.
    Variant("nanochat", NANOCHAT | {"final_logit_softcapping": 3.0}, "bfloat16"),
    # The layers that transformers chooses; norms behind attention and MLP with a large epsilon of their own.
    Variant("muse-glimmer", MUSE_GLIMMER, "bfloat16", "safetensors-sharded"),
    # A layer that rotates without a window, and one that has it and does not.
    Variant(
        "muse-glimmer-tied",
        MUSE_GLIMMER
        | {"num_hidden_layers": 3, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh"}
        | TYPES
        | {"layer_rope_theta": [5e5, 5e5, 0], "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    ),
    Variant("hunyuan", HUNYUAN, "bfloat16"),
    Variant("bitnet", BITNET | {"tie_word_embeddings": True}, "bfloat16"),
    Variant("bitnet-silu", BITNET | {"hidden_act": "silu", "attention_bias": True, "rope_scaling": LLAMA3_ROPE}),
    Variant("apertus", APERTUS),
    Variant("dory", DORY, "bfloat16"),
    # As published files list layers; the loop is the end.
    Variant(
        "dory-three",
        DORY
        | {"num_hidden_layers": 8, "n_input_layers": 4, "n_recurrent_layers": 4, "n_output_layers": 0}
        | {"n_recurrent_loops": 3, "hidden_size": 80, "mlp_bias": True, "rope_parameters": _DORY_ROPE}
        | {"layer_types": ["full_attention", "mlp", "sliding_attention", "mlp"] * 2},
    ),
    Variant("apertus-1.5", APERTUS_1_5, "bfloat16", "safetensors-sharded"),
]
