"""The text model inside one that also looks at images, or listens: its part of the `config.json`.

Text alone runs through it as through the same model by itself. Its tensors have longer names, with ``language_model``,
``text_model`` or ``thinker`` in them (`checkpoint.adjusted`); those of images and sound are never read.
"""

from collections.abc import Mapping

from tinychat.models.rope_scaling import ROPE_TYPES

# transformers' sizes of Llama and Mistral, which the first files of LLaVA and Idefics lack.
_LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
_MISTRAL = {**_LLAMA, "model_type": "mistral", "intermediate_size": 14336}
_VOXTRAL = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
}
_QWEN2_AUDIO = {"model_type": "qwen2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_QWEN3_MOE = {"model_type": "qwen3_moe", "norm_topk_prob": True}
_GLM4V = {"model_type": "glm4", "rms_norm_eps": 1e-5, "head_dim": None, "max_position_embeddings": 32768}
# The text model of each wrapper where its section does not say, and transformers' values for keys that it may lack.
WRAPPERS: Mapping[str, Mapping[str, object]] = {
    "Apertus1p5ForConditionalGeneration": {"model_type": "apertus1p5_text", "vocab_size": 266752},
    "AyaVisionForConditionalGeneration": {"model_type": "cohere2"},
    "Cohere2VisionForConditionalGeneration": {"model_type": "cohere2"},
    "CohereCompassForConditionalGeneration": {"model_type": "cohere_compass_text"},
    "DeepseekVLForConditionalGeneration": {"model_type": "llama"},
    "DeepseekVLHybridForConditionalGeneration": {"model_type": "llama"},
    "EmbeddingGemma2Model": {"model_type": "embedding_gemma2_text", "num_attention_heads": 4, "vocab_size": 262144},
    "Ernie4_5_VLMoeForConditionalGeneration": {"model_type": "ernie4_5_vl_moe_text"},
    "Exaone4_5_ForConditionalGeneration": {"model_type": "exaone4"},
    "FastVlmForConditionalGeneration": {"model_type": "qwen2"},
    "Gemma3ForConditionalGeneration": {"model_type": "gemma3_text", "num_attention_heads": 8, "vocab_size": 262208},
    "Gemma3nForConditionalGeneration": {"model_type": "gemma3n_text", "num_attention_heads": 8, "vocab_size": 262400},
    "Gemma4ForConditionalGeneration": {"model_type": "gemma4_text", "num_attention_heads": 8, "vocab_size": 262144},
    "Gemma4UnifiedForConditionalGeneration": {
        "model_type": "gemma4_unified_text",
        "num_attention_heads": 8,
        "vocab_size": 262144,
    },
    "Glm46VForConditionalGeneration": _GLM4V,
    "Glm4vForConditionalGeneration": _GLM4V,
    "Glm4vMoeForConditionalGeneration": {"model_type": "glm4_moe", "attention_bias": True},
    "Granite4VisionForConditionalGeneration": {"model_type": "granite"},
    "HyperCLOVAXVisionV2ForConditionalGeneration": {"model_type": "hyperclovax"},
    "Idefics2ForConditionalGeneration": _MISTRAL,
    "Idefics3ForConditionalGeneration": {"model_type": "llama"},
    "Inkling2LoopForConditionalGeneration": {"model_type": "inkling2_loop_text"},
    "InternVLForConditionalGeneration": {"model_type": "qwen2"},
    "Kimi_K25ForConditionalGeneration": {"model_type": "deepseek_v3"},
    "Lfm2VlForConditionalGeneration": {"model_type": "lfm2"},
    "Lfm3VlForConditionalGeneration": {"model_type": "lfm3"},
    "LlavaForConditionalGeneration": _LLAMA,
    "LlavaNextForConditionalGeneration": _LLAMA,
    "LlavaOnevisionForConditionalGeneration": {"model_type": "qwen2"},
    "MiniCPMV4_6ForConditionalGeneration": {"model_type": "qwen3_5_text"},
    "MiniCPMV4_7ForConditionalGeneration": {"model_type": "qwen3_5_text"},
    "Mistral3ForConditionalGeneration": {"model_type": "mistral", "head_dim": 128, "sliding_window": None},
    "MuseGlimmerForConditionalGeneration": {"model_type": "muse_glimmer_text"},
    "NemotronH_Omni_Reasoning_V3": {"model_type": "nemotron_h"},
    "Ovis2ForConditionalGeneration": {"model_type": "qwen2"},
    "PerceptionLMForConditionalGeneration": {"model_type": "llama"},
    "Phi4MultimodalForCausalLM": {"model_type": "phi3"},
    "Qwen2AudioForConditionalGeneration": _QWEN2_AUDIO,
    "Qwen2VLForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen2_5OmniForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen2_5OmniThinkerForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen2_5_VLForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen3OmniMoeForConditionalGeneration": _QWEN3_MOE,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _QWEN3_MOE,
    "Qwen3VLForConditionalGeneration": {"model_type": "qwen3"},
    "Qwen3VLMoeForConditionalGeneration": _QWEN3_MOE,
    "Qwen3_5ForConditionalGeneration": {"model_type": "qwen3_5_text"},
    "Qwen3_5MoeForConditionalGeneration": {"model_type": "qwen3_5_moe_text"},
    "SmolVLMForConditionalGeneration": {"model_type": "llama"},
    "VideoLlama3ForConditionalGeneration": {"model_type": "qwen2"},
    "VoxtralForConditionalGeneration": _VOXTRAL,
}
# Those that also see images here.
GEMMA3, GEMMA4 = "Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration"
LFM2_VL = "Lfm2VlForConditionalGeneration"
LLAVA, MISTRAL3 = "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"
SEEING = (
    GEMMA3,
    GEMMA4,
    "Idefics3ForConditionalGeneration",
    LFM2_VL,
    LLAVA,
    MISTRAL3,
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
# Tokens of an image that see each other, by the key of the whole model, and its value for files without it. In Gemma 4
# these are the most, and models that are small lack the value of the text model's key that makes them do so.
_JOINT: Mapping[str, tuple[str, int]] = {
    GEMMA3: ("mm_tokens_per_image", 256),
    GEMMA4: ("vision_soft_tokens_per_image", 280),
}
# They run in one step, whose memory grows with them.
MOST_JOINT_TOKENS = 4096
# Names that published files have for some of them, of the code beside them.
ALSO_CALLED = {
    "HCXVisionV2ForCausalLM": "HyperCLOVAXVisionV2ForConditionalGeneration",
    "KimiK25ForConditionalGeneration": "Kimi_K25ForConditionalGeneration",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronH_Omni_Reasoning_V3",
    "Phi4MMForCausalLM": "Phi4MultimodalForCausalLM",
    "Qwen2_5OmniModel": "Qwen2_5OmniForConditionalGeneration",
}
# Names of text models that compute the same as another one.
_SAME_AS = {
    "ernie4_5_moe_vl": "ernie4_5_vl_moe_text",
    "exaone4_5_text": "exaone4",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "granite4_vision_text": "granite",
    "kimi_k2": "deepseek_v3",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
# Of these, transformers ties the output by the whole model's key alone; its value for files that lack the key.
_TIED_OUTSIDE = {
    "CohereCompassForConditionalGeneration": False,
    "DeepseekVLForConditionalGeneration": True,
    "DeepseekVLHybridForConditionalGeneration": True,
    "HyperCLOVAXVisionV2ForConditionalGeneration": True,
    "Kimi_K25ForConditionalGeneration": True,
    "MuseGlimmerForConditionalGeneration": False,
    "Ovis2ForConditionalGeneration": True,
    "Qwen2_5OmniForConditionalGeneration": False,
    "Qwen2_5OmniThinkerForConditionalGeneration": False,
    "Qwen3OmniMoeForConditionalGeneration": False,
    "Qwen3OmniMoeThinkerForConditionalGeneration": False,
    "Qwen3VLMoeForConditionalGeneration": False,
}
# Keys of the whole model, which override the section's own.
_SHARED = ("quantization_config", "bos_token_id", "eos_token_id")


def wrapper_of(raw: Mapping[str, object]) -> str | None:
    """Return the architecture of a model that holds a text model, by its parsed `config.json`; None for others."""
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    name = ALSO_CALLED.get(name, name) if isinstance(name, str) else None
    return name if name in WRAPPERS else None


def image_token_of(raw: Mapping[str, object]) -> object:
    """Return the id of the token that stands for a part of an image, by a `config.json`; None if none is seen."""
    wrapper = wrapper_of(raw)
    if wrapper not in SEEING or (wrapper == LLAVA and not _has_pixtral(raw)):
        return None
    # The older name in LFM2-VL and Gemma 3, the only one in LLaVA and Mistral 3.
    return raw.get("image_token_index") if raw.get("image_token_id") is None else raw["image_token_id"]


def _has_pixtral(raw: Mapping[str, object]) -> bool:
    """Return whether the tower is that of Pixtral: no other one inside of LLaVA is supported."""
    section = raw.get("vision_config")
    return isinstance(section, Mapping) and section.get("model_type") == "pixtral"


def joint_tokens_of(raw: Mapping[str, object]) -> object:
    """Return how many tokens of an image attend to each other, by a `config.json`; 0 if none do."""
    if wrapper_of(raw) == GEMMA4 and text_part(raw).get("use_bidirectional_attention") != "vision":
        return 0
    key, default = _JOINT.get(wrapper_of(raw) or "", ("", 0))
    return default if raw.get(key) is None else raw[key]


def text_part(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the text model's part of a `config.json`: all of it, where the model is no more than that."""
    wrapper = wrapper_of(raw)
    if wrapper is None:
        return raw
    # Models that also speak have the part that writes in a section of its own.
    thinker = raw.get("thinker_config")
    raw = {**raw, **thinker} if isinstance(thinker, Mapping) else raw
    section = raw.get("text_config") or raw.get("llm_config")
    # Older files of Qwen2.5-VL have no section, nor do those of Phi-4 and ERNIE 4.5.
    found = {**WRAPPERS[wrapper], **(section if isinstance(section, Mapping) else raw)}
    found["model_type"] = _SAME_AS.get(str(found["model_type"]), found["model_type"])
    found["architectures"] = None
    found |= {key: raw[key] for key in _SHARED if raw.get(key) is not None}
    # The older name in LFM2-VL: that of the whole model counts.
    found.pop("tie_embedding", None)
    if raw.get("tie_embedding") is not None:
        raw = {**raw, "tie_word_embeddings": raw["tie_embedding"]}
    parts = (raw,) if wrapper in _TIED_OUTSIDE else (raw, found)
    ties = [part["tie_word_embeddings"] for part in parts if part.get("tie_word_embeddings") is not None]
    if wrapper in _TIED_OUTSIDE or ties:
        found["tie_word_embeddings"] = True in (ties or [_TIED_OUTSIDE.get(wrapper)])
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        # The axes of a position are no scaling: see `models.rotary_axes`.
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            kind = rope.get("rope_type") or rope.get("type")
            kind = kind if kind in ROPE_TYPES else "default"
            found[key] = {**rope, "rope_type": kind, "type": kind}
    return found
