"""The ``config.json`` of well-known models, to measure their shapes with random weights instead of a download.

Token ids are those of Llama 2's tokenizer, which goes with random weights of any shape.
"""

from tinychat.errors import SettingError

_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "rope_theta",
    "tie_word_embeddings",
)
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
}
_QWEN3_5 = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "rms_norm_eps": 1e-6,
}

_DEEPSEEK_V2 = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}
_KIMI_LINEAR = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "kv_lora_rank": 512,
    "model_max_length": 1048576,
}
_GRANITE_HYBRID = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "num_local_experts": 0,
    "shared_intermediate_size": 4096,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "embedding_multiplier": 12,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125,
    "logits_scaling": 6,
}
_GEMMA = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
}
_ZAYA = {
    "architectures": ["ZayaForCausalLM"],
    "model_type": "zaya",
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 2048,
    "router_hidden_size": 256,
}
# As its checkpoint has them, attention and MLP are layers of their own.
_DORY = {
    "architectures": ["DoryForCausalLM"],
    "model_type": "dory",
    "head_dim": 256,
    "layer_types": [*(["sliding_attention", "mlp"] * 3), "full_attention", "mlp"] * 9,
    "n_input_layers": 16,
    "n_recurrent_layers": 40,
    "n_output_layers": 16,
}
_INKLING = {
    "architectures": ["Inkling2LoopForCausalLM"],
    "model_type": "inkling2_loop_text",
    "unpadded_vocab_size": 200058,
    "moe_intermediate_size": 1152,
    "num_experts_per_tok": 8,
    "head_dim": 128,
}
_MXFP4 = {"mode": "mxfp4", "bits": 4, "group_size": 32}
_BITNET = {
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "hidden_act": "relu2",
    "quantization": {"bits": 2, "group_size": 256, "embed_tokens": {"bits": 8, "group_size": 32}},
}
_BONSAI = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "quantization": {"bits": 1, "group_size": 128},
}
_GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "head_dim": 64,
    "quantization": {
        "bits": 8,
        "group_size": 32,
        "expert_gate_up_proj": _MXFP4,
        "expert_down_proj": _MXFP4,
    },
}
_KIMI_LAYERS = ["linear_attention"] * 3 + ["full_attention"]
_GEMMA3N = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "rope_local_base_freq": 1e4,
    "num_kv_shared_layers": 10,
    "vocab_size_per_layer_input": 262144,
    **_GEMMA,
}
_GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "global_head_dim": 512,
    **_GEMMA,
}


def _shape(*values: object, **others: object) -> dict[str, object]:
    return dict(zip(_KEYS, values, strict=True)) | others


SHAPES = {
    "tiny": _shape(128, 384, 2, 4, 2, 32000, 8192, 1e4, False),
    "smollm2-135m": _shape(576, 1536, 30, 9, 3, 49152, 8192, 1e5, True),
    "tinyllama-1.1b": _shape(2048, 5632, 22, 32, 4, 32000, 2048, 1e4, False),
    "llama-3.2-1b": _shape(2048, 8192, 16, 32, 8, 128256, 131072, 5e5, True, rope_scaling=_LLAMA3_SCALING),
    "qwen3.5-0.8b": _shape(1024, 3584, 24, 8, 2, 248320, 262144, 1e7, True, **_QWEN3_5),
    "gemma3n-e2b": _shape(2048, 8192, 30, 8, 2, 262400, 32768, 1e6, True, **_GEMMA3N),
    "gemma4-e2b": _shape(
        1536,
        6144,
        35,
        8,
        1,
        262144,
        131072,
        None,
        True,
        layer_types=["full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(35)],
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
        **_GEMMA4,
    ),
    "granite-4.0-h-1b": _shape(1536, 4096, 40, 12, 4, 100352, 131072, 1e4, True, **_GRANITE_HYBRID),
    # Four of its 48 layers: all of them would take 17 GB.
    "qwen3-30b-a3b-4-layers": _shape(2048, 6144, 4, 32, 4, 151936, 40960, 1e6, False, **_QWEN3_MOE),
    # Six of its 27 layers: all of them would take 9 GB.
    "deepseek-v2-lite-6-layers": _shape(2048, 10944, 6, 16, 16, 102400, 163840, 1e4, False, **_DEEPSEEK_V2),
    # Four of its 27 layers: all of them would take 27 GB.
    "kimi-linear-48b-a3b-4-layers": _shape(
        2304, 9216, 4, 32, 32, 163840, 1048576, 1e4, False, layer_types=_KIMI_LAYERS, **_KIMI_LINEAR
    ),
    # Codes of two bits and of one, as their checkpoints have them.
    "bitnet-2b4t": _shape(2560, 6912, 30, 20, 5, 128256, 4096, 5e5, True, **_BITNET),
    "bonsai-8b": _shape(4096, 12288, 36, 32, 8, 151936, 65536, 1e6, False, **_BONSAI),
    # Experts in MXFP4, all else in eight bits: 12 GB.
    "gpt-oss-20b": _shape(2880, 2880, 24, 64, 8, 201088, 131072, None, False, **_GPT_OSS),
    # Of its 36 layers 20 run twice.
    "dory-4b": _shape(2560, 7168, 72, 16, 4, 131072, 8192, None, False, **_DORY),
    "zaya1-8b": _shape(2048, 2048, 40, 8, 2, 262272, 131072, None, True, **_ZAYA),
    # 16 of the 128 experts of each layer: all of them would take 14 GB. Of its 24 layers 12 run three times.
    "inkling-2-mini-16-experts": _shape(
        2304, 1152, 24, 24, 8, 201024, 1048576, None, False, n_routed_experts=16, **_INKLING
    ),
    "llama-2-7b": _shape(4096, 11008, 32, 32, 32, 32000, 4096, 1e4, False),
}


def config_of(shape: str) -> dict[str, object]:
    """Return the content of a shape's ``config.json``."""
    if shape not in SHAPES:
        raise SettingError(f"shape {shape!r} is unknown: choose one of {', '.join(SHAPES)}")
    return {**_LLAMA, **SHAPES[shape]}
