"""BLOOM and MPT: no positions at all, but scores that fall with the distance of the key (ALiBi); an MLP without gates.

BLOOM has biases, norms its embeddings, and has queries, keys and values of a head together (Press et al., 2022,
https://arxiv.org/abs/2108.12409; BigScience, 2022, https://arxiv.org/abs/2211.05100; MosaicML, 2023,
https://github.com/mosaicml/llm-foundry; github.com/huggingface/transformers, models/bloom and mpt).
"""

from collections.abc import Mapping
from dataclasses import replace

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues, with_default_mlp
from tinychat.models.decoder import TensorNames, layer_norms
from tinychat.models.families import falcon
from tinychat.models.family import Family

BLOCK = "transformer.blocks.{}."
BLOOM_DEFAULTS = {
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
MPT_DEFAULTS = {"layer_norm_epsilon": 1e-5, "hidden_act": "gelu", "max_seq_len": 2048, "tie_word_embeddings": True}
MPT_NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}
BLOOM_TENSORS = replace(
    falcon.TENSORS,
    norms={
        "embed_norm": "transformer.word_embeddings_layernorm",
        **layer_norms(f"{falcon.LAYER}input_layernorm", f"{falcon.LAYER}post_attention_layernorm", "transformer.ln_f"),
    },
)
MPT_TENSORS = TensorNames(
    embed="transformer.wte",
    qkv=(f"{BLOCK}attn.Wqkv",),
    o=f"{BLOCK}attn.out_proj",
    gate_up=(f"{BLOCK}ffn.up_proj",),
    down=f"{BLOCK}ffn.down_proj",
    norms=layer_norms(f"{BLOCK}norm_1", f"{BLOCK}norm_2", "transformer.norm_f"),
)


def prepare_bloom(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Bring the names of older files to one, and add the width of the MLP: four times the model."""
    found = {**raw, "hidden_size": raw.get("n_embed") or raw.get("hidden_size"), "intermediate_size": None}
    if raw.get("n_head") is None and "num_attention_heads" in raw:
        found["n_head"] = raw["num_attention_heads"]
    return with_default_mlp(found, "hidden_size", "intermediate_size")


def prepare_mpt(raw: Mapping[str, object]) -> Mapping[str, object]:
    """Add the width of the MLP: four times the model."""
    return with_default_mlp({**raw, "intermediate_size": None}, "d_model", "intermediate_size")


def read_bloom(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """All linears have biases."""
    values.require(apply_residual_connection_post_layernorm=False)
    config = replace(config, layer_norm=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True)
    return _sloped(config, slopes_of(config.num_attention_heads))


def read_mpt(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """No linear has a bias; attention is in a section of its own."""
    section = values.optional_section("attn_config") or ConfigValues({}, values.source)
    section.require(alibi=True, qk_ln=False, prefix_lm=False, clip_qkv=None)
    values.require(logit_scale=None, no_bias=True)
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


BLOOM = Family(
    "BloomForCausalLM",
    "bloom",
    "BLOOM, BLOOMZ",
    "ALiBi, MLP without gates, norm of the embeddings",
    BLOOM_DEFAULTS,
    read_bloom,
    BLOOM_TENSORS,
    names=BLOOM_NAMES,
    prepared=prepare_bloom,
)
MPT = Family(
    "MptForCausalLM",
    "mpt",
    "MPT",
    "ALiBi, MLP without gates, no biases",
    MPT_DEFAULTS,
    read_mpt,
    MPT_TENSORS,
    names=MPT_NAMES,
    prepared=prepare_mpt,
)
