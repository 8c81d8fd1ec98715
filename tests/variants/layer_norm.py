"""Variants of the families with layer norms."""

from variants.common import COMMON, Variant

STABLELM = COMMON | {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "num_key_value_heads": 2,
}
STARCODER2 = COMMON | {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 21,
    "tie_word_embeddings": True,
}
PHI = COMMON | {
    "architectures": ["PhiForCausalLM"],
    "model_type": "phi",
    "num_key_value_heads": 2,
    "hidden_act": "gelu_new",
}
GPT_NEOX = COMMON | {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "rotary_pct": 0.5,
    "rotary_emb_base": 5000,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 120,
    "n_layer": 3,
    "n_head": 6,
    "n_positions": 256,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT_BIGCODE = GPT2 | {
    "architectures": ["GPTBigCodeForCausalLM"],
    "model_type": "gpt_bigcode",
    "activation_function": "gelu_pytorch_tanh",
}
GPTJ = GPT2 | {
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "rotary_dim": 12,
    "n_inner": 172,
    "tie_word_embeddings": False,
}
OPT = COMMON | {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "ffn_dim": 172,
    "activation_function": "relu",
    "tie_word_embeddings": True,
}
BLOOM = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 120,
    "n_layer": 3,
    "n_head": 6,
    "seq_length": 256,
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MPT = {
    "architectures": ["MptForCausalLM"],
    "model_type": "mpt",
    "d_model": 120,
    "n_layers": 3,
    "n_heads": 6,
    "max_seq_len": 256,
    "attn_config": {"alibi": True, "attn_impl": "torch"},
    "tie_word_embeddings": True,
    "vocab_size": 517,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = COMMON | {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "multi_query": True,
    "parallel_attn": True,
    "new_decoder_architecture": False,
    "tie_word_embeddings": True,
}
FALCON_NEW = FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "ffn_hidden_size": 172}

COHERE = COMMON | {
    "architectures": ["CohereForCausalLM"],
    "model_type": "cohere",
    "num_key_value_heads": 2,
    "logit_scale": 0.5,
    "pad_token_id": 0,
}
COHERE2 = COHERE | {
    "architectures": ["Cohere2ForCausalLM"],
    "model_type": "cohere2",
    "num_hidden_layers": 4,
    "sliding_window": 24,
}
# Of both kinds of layers, those with a window alone rotate.
COHERE_COMPASS = COHERE | {
    "architectures": ["CohereCompassForCausalLM"],
    "model_type": "cohere_compass_text",
    "num_hidden_layers": 4,
    "sliding_window": 24,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    "rope_parameters": {
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": 5e4,
            "mrope_interleaved": True,
            "mrope_section": [4, 4, 4],
        },
        "full_attention": None,
        "rope_theta": 1e4,
        "rope_type": "default",
    },
}
NEMOTRON = COMMON | {
    "architectures": ["NemotronForCausalLM"],
    "model_type": "nemotron",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "hidden_act": "relu2",
}
JAIS2 = COMMON | {
    "architectures": ["Jais2ForCausalLM"],
    "model_type": "jais2",
    "num_key_value_heads": 2,
    "hidden_act": "relu2",
}
OLMO = COMMON | {"architectures": ["OlmoForCausalLM"], "model_type": "olmo", "pad_token_id": 0}

VARIANTS = [
    Variant("stablelm", STABLELM | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}, "float16"),
    Variant("stablelm-parallel", STABLELM | {"use_parallel_residual": True, "partial_rotary_factor": 0.5}),
    Variant("stablelm-heads", STABLELM | {"qk_layernorm": True, "use_parallel_residual": True}, "bfloat16"),
    Variant("starcoder2", STARCODER2, "bfloat16"),
    Variant("phi", PHI, "float16"),
    Variant("gpt-neox", GPT_NEOX, "float16"),
    Variant("gpt-neox-serial", GPT_NEOX | {"use_parallel_residual": False, "attention_bias": False}),
    Variant("gpt2", GPT2, "float32"),
    Variant("starcoder", GPT_BIGCODE, "bfloat16"),
    Variant("gpt-bigcode-heads", GPT_BIGCODE | {"multi_query": False, "n_inner": 172}),
    Variant("gptj", GPTJ, "float16"),
    Variant("opt", OPT, "float16"),
    Variant("opt-350m", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 52}, "float16"),
    # Heads that are no power of two, whose slopes are of two series.
    Variant("bloom", BLOOM, "bfloat16"),
    Variant("mpt", MPT, "bfloat16"),
    Variant("falcon-7b", FALCON, "bfloat16"),
    Variant("falcon-40b", FALCON_NEW | {"tie_word_embeddings": False}, "bfloat16"),
    Variant("falcon-11b", FALCON_NEW | {"num_ln_in_parallel_attn": 1}),
    Variant("cohere", COHERE | {"attention_bias": True}, "bfloat16"),
    Variant("cohere2", COHERE2, "bfloat16"),
    Variant("cohere-compass", COHERE_COMPASS, "bfloat16"),
    # Both kinds rotate, each with a base of its own; no multiplier.
    Variant(
        "cohere-compass-rotated",
        COHERE_COMPASS
        | {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
        | {"logit_scale": None, "tie_word_embeddings": False, "attention_bias": True, "head_dim": 40}
        | {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e4},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
            }
        },
    ),
    Variant("nemotron", NEMOTRON, "bfloat16"),
    Variant("jais2", JAIS2, "bfloat16"),
    Variant("olmo", OLMO | {"num_key_value_heads": 2, "tie_word_embeddings": True}, "bfloat16"),
]
