"""Variants of the families whose code comes with their checkpoints: `remote_models` stands for it."""

from variants.common import COMMON, Variant

BAICHUAN = COMMON | {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "rms_norm_eps": 1e-6}
# Heads that are no power of two.
BAICHUAN_13B = BAICHUAN | {"hidden_size": 120, "num_attention_heads": 6, "model_max_length": 256}
del BAICHUAN_13B["max_position_embeddings"]
INTERNLM2 = COMMON | {
    "architectures": ["InternLM2ForCausalLM"],
    "model_type": "internlm2",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 80,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "bias": True,
}
# Beyond twice the training length, 200 tokens have the third base.
QWEN = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "hidden_size": 96,
    "intermediate_size": 344,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "kv_channels": 24,
    "layer_norm_epsilon": 1e-6,
    "max_position_embeddings": 256,
    "seq_length": 80,
    "rotary_emb_base": 10000,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHATGLM = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "hidden_size": 96,
    "ffn_hidden_size": 172,
    "num_layers": 3,
    "num_attention_heads": 4,
    "kv_channels": 24,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
    "layernorm_epsilon": 1e-5,
    "rope_ratio": 50,
    "seq_length": 256,
    "padded_vocab_size": 517,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LING = COMMON | {
    "architectures": ["BailingMoeForCausalLM"],
    "model_type": "bailing_moe",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 6e5,
    "moe_intermediate_size": 52,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "norm_topk_prob": True,
}
LING2 = LING | {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
# Of layers like those of the larger models: the first of four neither rotates nor has a window.
SMALLTHINKER = {key: value for key, value in COMMON.items() if key not in ("intermediate_size", "hidden_act")} | {
    "architectures": ["SmallThinkerForCausalLM"],
    "model_type": "smallthinker",
    "num_hidden_layers": 5,
    "num_key_value_heads": 2,
    "head_dim": 40,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1.5e6,
    "rope_layout": [0, 1, 1, 1, 0],
    "sliding_window_layout": [0, 1, 1, 1, 0],
    "sliding_window_size": 21,
    "moe_ffn_hidden_size": 52,
    "moe_num_primary_experts": 11,
    "moe_num_active_primary_experts": 3,
    "moe_primary_router_apply_softmax": False,
    "tie_word_embeddings": False,
}
SMALLTHINKER_SOFTMAX = SMALLTHINKER | {
    "num_hidden_layers": 3,
    "rope_layout": [1] * 3,
    "sliding_window_layout": [0] * 3,
    "moe_primary_router_apply_softmax": True,
    "tie_word_embeddings": True,
}

VARIANTS = [
    Variant("baichuan2-7b", BAICHUAN | {"z_loss_weight": 0}, "bfloat16", "safetensors-sharded"),
    Variant("baichuan-13b", BAICHUAN_13B, "float16"),
    Variant("internlm2", INTERNLM2, "bfloat16"),
    Variant("qwen", QWEN, "bfloat16"),
    Variant("chatglm3", CHATGLM, "float16"),
    Variant("ling-lite", LING, "bfloat16"),
    Variant("ling-mini-2.0", LING2, "bfloat16"),
    Variant("smallthinker", SMALLTHINKER, "bfloat16", "safetensors-sharded"),
    Variant("smallthinker-softmax", SMALLTHINKER_SOFTMAX, "bfloat16"),
]
