"""Variants of the families with latent attention."""

from variants.common import COMMON, YARN, Variant

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
]
