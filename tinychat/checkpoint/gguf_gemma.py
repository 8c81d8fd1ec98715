"""The keys of ``config.json`` of Gemma's models in GGUF files: see `checkpoint.gguf_families`."""

from statistics import NormalDist
from typing import Any

from tinychat.checkpoint.gguf_values import Config, GgufValues, positive, present
from tinychat.models.drafter import GEMMA4

ENDLESS = 1e29


def gemma2(values: GgufValues, interval: int = 2) -> Config:
    """Return the keys of Gemma 2; one of so many layers has no window."""
    # The largest sizes divide scores by another number than the size of a head, which no key has.
    is_largest = values.config.get("num_hidden_layers") in (46, 62)
    width, heads = (positive(values.config.get(key), 1) for key in ("hidden_size", "num_attention_heads"))
    return {
        "query_pre_attn_scalar": width / heads if is_largest else values.config.get("head_dim"),
        "attn_logit_softcapping": values.get("attn_logit_softcapping"),
        "final_logit_softcapping": values.get("final_logit_softcapping"),
        **values.windows(interval),
    }


def gemma3(values: GgufValues) -> Config:
    """Return the keys of Gemma 3."""
    return {**gemma2(values, 6), "rope_local_base_freq": values.get("rope.freq_base_swa", 1e4)}


def embedding_gemma(values: GgufValues) -> Config:
    """Return the keys of EmbeddingGemma, whose window is that of both sides together."""
    return {**gemma3(values), "use_bidirectional_attention": True, "is_causal": None}


def gemma4(values: GgufValues) -> Config:
    """Return the keys of Gemma 4."""
    types, theta = values.layer_types(6), values.config.get("rope_theta")
    # Divisors of the angles of layers without a window: those of channels that stay are endless.
    divisors = (values.config.get("rope_scaling") or {}).get("short_factor") or [1.0]
    rotated = sum(divisor < ENDLESS for divisor in divisors) / len(divisors)
    found: dict[str, Any] = {
        "head_dim": values.get("attention.key_length_swa"),
        "global_head_dim": values.get("attention.key_length"),
        "num_kv_shared_layers": values.get("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": values.get("embedding_length_per_layer_input", 0),
        "final_logit_softcapping": values.get("final_logit_softcapping"),
        "sliding_window": values.config.get("sliding_window"),
        "layer_types": types,
        "attention_k_eq_v": any(
            f"blk.{layer}.attn_k.weight" in values.tensors and f"blk.{layer}.attn_v.weight" not in values.tensors
            for layer in range(len(types))
        ),
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": rotated},
            "sliding_attention": {"rope_type": "default", "rope_theta": values.get("rope.freq_base_swa", 1e4)},
        },
    }
    heads, widths = (values.config.get(key) for key in ("num_key_value_heads", "intermediate_size"))
    if isinstance(heads, list):
        by_kind = dict(zip(types, heads))
        found["num_key_value_heads"] = by_kind.get("sliding_attention")
        found["num_global_key_value_heads"] = by_kind.get("full_attention")
    if isinstance(widths, list) and widths and all(type(width) is int for width in widths):
        found |= {"intermediate_size": min(widths), "use_double_wide_mlp": True}
    if values.get("expert_count"):
        size = values.get("expert_feed_forward_length")
        found |= {"moe_intermediate_size": size, "enable_moe_block": True}
    return found


def embedding_gemma2(values: GgufValues) -> Config:
    """Return the keys of EmbeddingGemma 2, whose window is that of both sides together."""
    found, window = gemma4(values), values.config.get("sliding_window")
    return {
        # Not a list, where all layers have as many.
        "num_global_key_value_heads": values.config.get("num_key_value_heads"),
        **found,
        "sliding_window": window // 2 if type(window) is int else window,
        "embedding_dim": values.get("embedding_length_out"),
        "is_causal": None,
    }


def gemma4_drafter(values: GgufValues) -> Config:
    """Return the keys of Gemma 4's drafters.

    Their output matrix is read as a whole: llama.cpp's converter leaves the clusters out, and no key of a file that has
    them tells how many are used.
    """
    return {
        **gemma4(values),
        # No layer has keys to show it. Heads of keys differ by kind only where they are values, too.
        "attention_k_eq_v": isinstance(values.config.get("num_key_value_heads"), list),
        "model_type": GEMMA4,
        "backbone_hidden_size": values.get("embedding_length_out"),
    }


def gemma3n(values: GgufValues) -> Config:
    """Return the keys of Gemma 3n; for what old files lack, those of its two models."""
    scales, shared = values.raw("activation_sparsity_scale"), values.get("attention.shared_kv_layers")
    found: dict[str, Any] = {
        "sliding_window": values.config.get("sliding_window"),
        "layer_types": values.layer_types(5),
        "rope_local_base_freq": values.get("rope.freq_base_swa", 1e4),
        "final_logit_softcapping": values.get("final_logit_softcapping", 30.0),
        "hidden_size_per_layer_input": values.get("embedding_length_per_layer_input", 256),
        "vocab_size_per_layer_input": values.config.get("vocab_size"),
        # Its makers' files have a float here.
        "num_kv_shared_layers": int(shared) if isinstance(shared, float) and shared.is_integer() else shared,
        "altup_num_inputs": values.get("altup.num_inputs"),
        "altup_active_idx": values.get("altup.active_idx"),
        "activation_sparsity_pattern": [*map(_closed, scales)] if isinstance(scales, list) else scales,
    }
    return present(found)


def _closed(scale: object) -> object:
    """Return the share of numbers that are less than so many deviations, float32, above their mean."""
    return round(NormalDist().cdf(scale), 6) if isinstance(scale, float) else scale
