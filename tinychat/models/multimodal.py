"""The text model inside one that also looks at images, or listens: its part of the `config.json`.

Text alone runs through it as through the same model by itself. Its tensors have ``language_model`` in their names
(`checkpoint.adjusted`); those of images and sound are never read.
"""

from collections.abc import Mapping

# The text model of each wrapper where its section does not say, and transformers' values for keys that it may lack.
WRAPPERS: Mapping[str, Mapping[str, object]] = {
    "Apertus1p5ForConditionalGeneration": {"model_type": "apertus1p5_text", "vocab_size": 266752},
    "Gemma3ForConditionalGeneration": {"model_type": "gemma3_text", "num_attention_heads": 8, "vocab_size": 262208},
    "Gemma3nForConditionalGeneration": {"model_type": "gemma3n_text", "num_attention_heads": 8, "vocab_size": 262400},
    "Gemma4ForConditionalGeneration": {"model_type": "gemma4_text", "num_attention_heads": 8, "vocab_size": 262144},
    "Gemma4UnifiedForConditionalGeneration": {
        "model_type": "gemma4_unified_text",
        "num_attention_heads": 8,
        "vocab_size": 262144,
    },
    "Mistral3ForConditionalGeneration": {"model_type": "mistral", "head_dim": 128, "sliding_window": None},
    "LlavaForConditionalGeneration": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
    },
    "InternVLForConditionalGeneration": {"model_type": "qwen2"},
    "Lfm2VlForConditionalGeneration": {"model_type": "lfm2"},
    "Lfm3VlForConditionalGeneration": {"model_type": "lfm3"},
    "Qwen2VLForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen2_5_VLForConditionalGeneration": {"model_type": "qwen2"},
    "Qwen3VLForConditionalGeneration": {"model_type": "qwen3"},
    "Qwen3VLMoeForConditionalGeneration": {"model_type": "qwen3_moe", "norm_topk_prob": True},
    "Qwen3_5ForConditionalGeneration": {"model_type": "qwen3_5_text"},
    "Qwen3_5MoeForConditionalGeneration": {"model_type": "qwen3_5_moe_text"},
}
# Names of text models that compute the same as another one.
_SAME_AS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Of these, transformers ties the output by the whole model's key alone.
_TIED_OUTSIDE = {"Qwen3VLMoeForConditionalGeneration"}
# Keys of the whole model, which override the section's own.
_SHARED = ("quantization_config", "bos_token_id", "eos_token_id")


def wrapper_of(raw: Mapping[str, object]) -> str | None:
    """Return the architecture of a model that holds a text model, by its parsed `config.json`; None for others."""
    names = raw.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and name in WRAPPERS else None


def text_part(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Return the text model's part of a `config.json`: all of it, where the model is no more than that."""
    wrapper = wrapper_of(raw)
    if wrapper is None:
        return raw
    section = raw.get("text_config")
    # Older files of Qwen2.5-VL have no section.
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
        found["tie_word_embeddings"] = True in ties
    for key in ("rope_scaling", "rope_parameters"):
        rope = found.get(key)
        # Without images, the three parts of a position are the same.
        if isinstance(rope, Mapping) and "mrope_section" in rope:
            found[key] = {**rope, "rope_type": "default", "type": "default"}
    return found
