"""Small random checkpoints of models whose tokens attend to later ones, which give embeddings alone."""

from variants.common import COMMON, Variant
from variants.rms_norm import GEMMA3

BERT = COMMON | {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA = BERT | {
    "architectures": ["RobertaModel"],
    "model_type": "roberta",
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "max_position_embeddings": 258,
}
MPNET = COMMON | {
    "architectures": ["MPNetModel"],
    "model_type": "mpnet",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "max_position_embeddings": 258,
    "relative_attention_num_buckets": 32,
}
DISTILBERT = {
    "architectures": ["DistilBertModel"],
    "model_type": "distilbert",
    "dim": 96,
    "hidden_dim": 172,
    "n_layers": 3,
    "n_heads": 4,
    "vocab_size": 517,
    "max_position_embeddings": 256,
    "activation": "gelu",
    "pad_token_id": 0,
}
NOMIC_BERT = COMMON | {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "rope_theta": 1000.0,
    "pad_token_id": 0,
}
# The keys of published files.
NOMIC_PUBLISHED = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "n_embd": 96,
    "n_inner": 172,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 512,
    "max_trained_positions": 256,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_scaling_factor": None,
    "activation_function": "swiglu",
    "qkv_proj_bias": False,
    "prenorm": False,
    "type_vocab_size": 2,
    "vocab_size": 517,
}
ELECTRA = BERT | {"architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 96}
GTE = COMMON | {
    "architectures": ["GteModel"],
    "model_type": "gte",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 1,
    "rope_theta": 16000.0,
    "pad_token_id": 1,
}
JINA = COMMON | {
    "architectures": ["JinaEmbeddingsV3Model"],
    "model_type": "jina_embeddings_v3",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    "rope_theta": 2000.0,
    "pad_token_id": 1,
}
JINA_BERT = BERT | {
    "architectures": ["JinaBertModel"],
    "num_attention_heads": 6,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
}
TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
# As its makers publish it.
JINA_PUBLISHED = {key: value for key, value in JINA.items() if key != "rope_theta"} | {
    "architectures": ["XLMRobertaModel"],
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 2000.0,
    "lora_adaptations": TASKS,
    "lora_alpha": 3,
    "lora_rank": 4,
    "use_reg_tokens": False,
}
# As its makers publish it, with another rotary embedding and no kinds of text.
NEW = GTE | {
    "architectures": ["NewModel"],
    "model_type": "new",
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "pack_qkv": True,
    "logn_attention_scale": False,
    "rope_theta": 2000.0,
    "rope_scaling": {"type": "ntk", "factor": 8.0},
    "type_vocab_size": 0,
    "pad_token_id": 0,
}
# Of 24 channels: see the makers' NTKScalingRotaryEmbedding.
NTK = {"rope_type": "linear", "factor": 8 ** (2 / 24), "rope_theta": 16000.0}
NEW_OF_TRANSFORMERS = NEW | {"architectures": ["GteModel"], "model_type": "gte", "rope_scaling": NTK}
# The same of published files.
NOMIC_MOE = NOMIC_PUBLISHED | {
    "n_layer": 4,
    "activation_function": "gelu",
    "qkv_proj_bias": True,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "num_experts": 6,
    "moe_top_k": 2,
    "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False,
    "num_shared_experts": 0,
    "expert_choice_router": False,
}
EUROBERT = COMMON | {
    "architectures": ["EuroBertModel"],
    "model_type": "eurobert",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
}
QWEN3 = COMMON | {
    "architectures": ["Qwen3Model"],
    "model_type": "qwen3",
    "num_key_value_heads": 2,
    "head_dim": 40,
    "is_causal": False,
    "tie_word_embeddings": True,
}
ULTRABERT = COMMON | {
    "architectures": ["UltrabertModel"],
    "model_type": "ultrabert",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 21,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 16000.0},
    },
    "pad_token_id": 0,
}
# The keys of published files.
ULTRABERT_PUBLISHED = {
    key: value for key, value in ULTRABERT.items() if key not in ("layer_types", "sliding_window", "rope_parameters")
} | {"attention_windows": [21, 21, 0, 21], "rope_theta": [1000.0, 1000.0, 16000.0, 1000.0]}
MODERNBERT = COMMON | {
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "hidden_activation": "gelu",
    "norm_eps": 1e-5,
    "global_rope_theta": 16000.0,
    "local_rope_theta": 1000.0,
    "local_attention": 42,
    "pad_token_id": 0,
}
# As llama.cpp takes it: every sixth layer without a window, scores divided by the size of heads.
EMBEDDING_GEMMA = GEMMA3 | {
    "architectures": ["Gemma3TextModel"],
    "use_bidirectional_attention": True,
    "num_hidden_layers": 6,
    "sliding_window_pattern": 6,
    "rope_local_base_freq": 1e4,
    "query_pre_attn_scalar": 40,
}
EMBEDDING_GEMMA2 = {key: value for key, value in COMMON.items() if key != "hidden_act"} | {
    "architectures": ["EmbeddingGemma2TextModel"],
    "model_type": "embedding_gemma2_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 40,
    "global_head_dim": 56,
    "num_global_key_value_heads": 1,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "sliding_window": 21,
    "hidden_size_per_layer_input": 24,
    "embedding_dim": 136,
    "pad_token_id": 0,
}
_TYPES = [*["sliding_attention"] * 5, "full_attention"] * 4
# As it is published, without what sees images and hears.
EMBEDDING_GEMMA2_PUBLISHED = {
    "architectures": ["EmbeddingGemma2Model"],
    "model_type": "embedding_gemma2",
    "audio_config": {"model_type": "gemma4_audio"},
    "vision_config": {"model_type": "gemma4_vision"},
    "text_config": {
        "attention_bias": False,
        "bos_token_id": 2,
        "embedding_dim": 768,
        "eos_token_id": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 512,
        "hidden_size_per_layer_input": 512,
        "intermediate_size": 2048,
        "layer_types": _TYPES,
        "max_position_embeddings": 262144,
        "model_type": "embedding_gemma2_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "per_layer_config": {i: {"head_dim": 512, "num_key_value_heads": 1} for i in ("05", "11", "17", "23")},
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "sliding_window": 512,
        "vocab_size": 262144,
    },
}
ENCODERS = [
    Variant("bert", BERT),
    Variant("roberta", ROBERTA, "float16"),
    Variant("xlm-roberta", ROBERTA | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}),
    Variant("distilbert", DISTILBERT, "float16"),
    Variant("mpnet", MPNET),
    Variant("electra", ELECTRA),
    Variant("gte", GTE, "float16"),
    Variant("jina-v3", JINA),
    Variant("jina-v2", JINA_BERT),
    Variant("gte-new", NEW, theirs=NEW_OF_TRANSFORMERS),
    Variant("nomic-bert", NOMIC_BERT, theirs=NOMIC_BERT | {"rope_parameters": {"rope_theta": 1000.0}}),
    Variant("nomic-bert-moe", NOMIC_MOE),
    Variant("eurobert", EUROBERT, "bfloat16"),
    Variant("qwen3-both-ways", QWEN3),
    Variant("ultrabert", ULTRABERT, "bfloat16"),
    Variant("modernbert", MODERNBERT, "bfloat16"),
    Variant("embedding-gemma", EMBEDDING_GEMMA),
    Variant("embedding-gemma2", EMBEDDING_GEMMA2, "bfloat16"),
]
OF_OTHERS = ("mpnet", "electra", "gte", "gte-new", "ultrabert")  # whom llama.cpp does not know
# Newer than the llama.cpp that is compared with.
NEWER = ("embedding-gemma2",)
OF_LLAMA_CPP = [variant for variant in ENCODERS if variant.name not in OF_OTHERS]
REMOTE = ("nomic-bert-moe", "jina-v2")  # of which the code comes with checkpoints
BY_NAME = {variant.name: variant for variant in ENCODERS}
