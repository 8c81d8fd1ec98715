"""BLOOM and MPT: no positions at all, but scores that fall with the distance of the key (ALiBi); an MLP without gates.

BLOOM has biases, norms its embeddings, and keeps queries, keys and values of a head together (Press et al., 2022,
https://arxiv.org/abs/2108.12409; BigScience, 2022, https://arxiv.org/abs/2211.05100; MosaicML, 2023,
https://github.com/mosaicml/llm-foundry; github.com/huggingface/transformers, models/bloom and mpt).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.errors import UnsupportedModelError
from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.family import Family
from tinychat.models.tensors import Linear, Norm, split_order

LAYER, BLOCK = "transformer.h.{}.", "transformer.blocks.{}."
BLOOM = {
    "layer_norm_epsilon": 1e-5,
    "hidden_act": "gelu_new",
    "seq_length": 2048,
    "tie_word_embeddings": True,
}
BLOOM_NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
MPT = {"layer_norm_epsilon": 1e-5, "hidden_act": "gelu", "max_seq_len": 2048, "tie_word_embeddings": True}
MPT_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}


def prepare_bloom(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Bring the names of older files to one, and say how wide the MLP is: four times the model."""
    width = raw.get("n_embed") or raw.get("hidden_size")
    known = {key: raw[old] for key, old in (("n_head", "num_attention_heads"),) if raw.get(key) is None and old in raw}
    return {**raw, **known, "hidden_size": width, "intermediate_size": 4 * width if type(width) is int else None}


def prepare_mpt(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Say how wide the MLP is: four times the model."""
    width = raw.get("d_model")
    return {**raw, "intermediate_size": 4 * width if type(width) is int else None}


def read_bloom(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases."""
    if values.flag("apply_residual_connection_post_layernorm", False):
        raise UnsupportedModelError(f"{values.source}: apply_residual_connection_post_layernorm is not supported")
    config = replace(config, layer_norm=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True)
    return _sloped(config, slopes_of(config.num_attention_heads))


def read_mpt(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Nothing has a bias; attention is in a section of its own."""
    section = values.optional_section("attn_config") or ConfigValues({}, values.source)
    for key, only in (("alibi", True), ("qk_ln", False), ("prefix_lm", False)):
        if section.flag(key, only) != only:
            raise UnsupportedModelError(f"{section.source}: {key} {str(not only).lower()} is not supported")
    for holder, key in ((section, "clip_qkv"), (values, "logit_scale")):
        if holder.get(key) is not None:
            raise UnsupportedModelError(f"{holder.source}: {key} is not supported")
    if not values.flag("no_bias", True):
        raise UnsupportedModelError(f"{values.source}: no_bias false is not supported")
    scale = section.optional_number("softmax_scale", 1e-6, 1e6) or config.attention_scale
    config = replace(config, layer_norm=True, gated=False, attention_scale=scale)
    largest = section.optional_integer("alibi_bias_max", 1, 1024) or 8
    return _sloped(config, mpt_slopes_of(config.num_attention_heads, largest))


def _sloped(config: ModelConfig, slopes: tuple[float, ...]) -> ModelConfig:
    return replace(config, alibi_slopes=slopes, rotary_dims=(0,) * config.num_hidden_layers)


def slopes_of(heads: int) -> tuple[float, ...]:
    """Return BLOOM's slopes: a geometric series for a power of two, and every other of the next one for the rest."""
    power = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    rest = [2 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return tuple(first + rest)


def mpt_slopes_of(heads: int, largest: int) -> tuple[float, ...]:
    """Return MPT's slopes: of the next power of two, every other one first."""
    power = 1 << (heads - 1).bit_length()
    series = [2 ** (-largest * (i + 1) / power) for i in range(power)]
    return tuple(series if power == heads else (series[1::2] + series[::2])[:heads])


def linears_bloom(config: ModelConfig) -> list[Linear]:
    """List the linear layers of BLOOM."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    order = (split_order(config.num_attention_heads, 1, config.head_dim),)
    fused = f"{LAYER}self_attention.query_key_value"
    found = [
        Linear("embed_tokens", ("transformer.word_embeddings",), (V,), D, None),
        Linear("qkv_proj", (fused,), (3 * D,), D, L, True, order=order),
        Linear("o_proj", (f"{LAYER}self_attention.dense",), (D,), D, L, True),
        Linear("up_proj", (f"{LAYER}mlp.dense_h_to_4h",), (F,), D, L, True),
        Linear("down_proj", (f"{LAYER}mlp.dense_4h_to_h",), (D,), F, L, True),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms_bloom(config: ModelConfig) -> list[Norm]:
    """List the norms of BLOOM, that of the embeddings too."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("embed_norm", "transformer.word_embeddings_layernorm", D, None, bias=True),
        Norm("input_layernorm", f"{LAYER}input_layernorm", D, L, bias=True),
        Norm("post_attention_layernorm", f"{LAYER}post_attention_layernorm", D, L, bias=True),
        Norm("norm", "transformer.ln_f", D, None, bias=True),
    ]


def linears_mpt(config: ModelConfig) -> list[Linear]:
    """List the linear layers of MPT."""
    D, F, V, L = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_hidden_layers
    found = [
        Linear("embed_tokens", ("transformer.wte",), (V,), D, None),
        Linear("qkv_proj", (f"{BLOCK}attn.Wqkv",), (3 * D,), D, L),
        Linear("o_proj", (f"{BLOCK}attn.out_proj",), (D,), D, L),
        Linear("up_proj", (f"{BLOCK}ffn.up_proj",), (F,), D, L),
        Linear("down_proj", (f"{BLOCK}ffn.down_proj",), (D,), F, L),
    ]
    return found if config.tie_word_embeddings else [*found, Linear("lm_head", ("lm_head",), (V,), D, None)]


def norms_mpt(config: ModelConfig) -> list[Norm]:
    """List the norms of MPT."""
    D, L = config.hidden_size, config.num_hidden_layers
    return [
        Norm("input_layernorm", f"{BLOCK}norm_1", D, L),
        Norm("post_attention_layernorm", f"{BLOCK}norm_2", D, L),
        Norm("norm", "transformer.norm_f", D, None),
    ]


FAMILIES = (
    Family(
        "BloomForCausalLM",
        "bloom",
        "BLOOM, BLOOMZ",
        "ALiBi, MLP without gates, norm of the embeddings",
        BLOOM,
        read_bloom,
        linears_bloom,
        norms_bloom,
        names=BLOOM_NAMES,
        prepared=prepare_bloom,
    ),
    Family(
        "MptForCausalLM",
        "mpt",
        "MPT",
        "ALiBi, MLP without gates, no biases",
        MPT,
        read_mpt,
        linears_mpt,
        norms_mpt,
        names=MPT_NAMES,
        prepared=prepare_mpt,
    ),
)
