"""Youtu-LLM: Llama's layers with multi-head latent attention.

Queries are linears of a latent of their own, or of the layer's input; neighbouring channels are rotated together
(DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434; github.com/huggingface/transformers, models/youtu).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tinychat.models.config import ModelConfig
from tinychat.models.config_values import ConfigValues
from tinychat.models.decoder import ATTENTION, TensorNames, decoder_linears, decoder_norms
from tinychat.models.family import Family
from tinychat.models.latent import Latents, read_latents
from tinychat.models.rope import magnitude
from tinychat.models.tensors import Linear, Norm, Order, halves_order


def with_latents(values: ConfigValues, config: ModelConfig, neighbours: bool = True) -> ModelConfig:
    """Return the configuration with latent attention, of heads whose rotated channels are `head_dim`."""
    latents = read_latents(values, config.head_dim, neighbours)
    if not latents.q_lora_rank:
        values.require(attention_bias=False)
    bias, scaling = values.flag("attention_bias", False), config.rope_scaling
    stretched = magnitude(scaling.factor, scaling.mscale_all_dim) if scaling and scaling.mscale_all_dim else 1.0
    return replace(
        config,
        num_key_value_heads=1,
        head_dim=latents.key_dim,
        attention_scale=latents.query_dim**-0.5 * stretched**2,
        qkv_bias=bias,
        o_bias=bias,
        latents=latents,
    )


def linears(config: ModelConfig, names: TensorNames) -> list[Linear]:
    """List the linear layers: what all heads share is one, each head has its own between latents and attention."""
    sizes, found = _latents(config), decoder_linears(config, names)
    D, L, H = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    queries, rank = H * sizes.query_dim, sizes.q_lora_rank
    of_queries, of_key = _orders(config)
    sources = f"{ATTENTION}{'q_a_proj' if rank else 'q_proj'}", f"{ATTENTION}kv_a_proj_with_mqa"
    rows, order = (rank or queries, sizes.kv_lora_rank + sizes.qk_rope_head_dim), (None if rank else of_queries, of_key)
    projections = [Linear("qkv_proj", sources, rows, D, L, config.qkv_bias, order=order)]
    if rank:
        projections.append(Linear("q_b_proj", (f"{ATTENTION}q_b_proj",), (queries,), rank, L, order=(of_queries,)))
    keys, values = (f"{ATTENTION}{name}.{{}}" for name in ("k_b_proj", "v_b_proj"))
    projections += [
        Linear("k_b_proj", (keys,), (sizes.kv_lora_rank,), sizes.qk_nope_head_dim, L, heads=H),
        Linear("v_b_proj", (values,), (sizes.v_head_dim,), sizes.kv_lora_rank, L, heads=H),
    ]
    listed = {each.name: [each] for each in found} | {"qkv_proj": projections}
    listed["o_proj"] = [replace(each, columns=H * sizes.v_head_dim) for each in listed["o_proj"]]
    return [each for parts in listed.values() for each in parts]


def _orders(config: ModelConfig) -> Order:
    """Return the order of the rows of queries, and of the latent and the rotated key behind it."""
    sizes = _latents(config)
    if not sizes.neighbours:
        return None, None

    def rotated_last(heads: int, others: int) -> NDArray[np.intp]:
        rotated = sizes.qk_rope_head_dim
        head = np.concatenate([np.arange(others), others + halves_order(1, rotated, rotated)])
        rows: NDArray[np.intp] = (np.arange(heads)[:, None] * len(head) + head).reshape(-1)
        return rows

    return rotated_last(config.num_attention_heads, sizes.qk_nope_head_dim), rotated_last(1, sizes.kv_lora_rank)


def norms(config: ModelConfig, names: TensorNames) -> list[Norm]:
    """List the norms, with those of latents."""
    sizes = {"q_a_norm": _latents(config).q_lora_rank, "kv_a_norm": _latents(config).kv_lora_rank}
    found = [
        Norm(name, f"{ATTENTION}{name}".replace("norm", "layernorm"), size, config.num_hidden_layers, padded=False)
        for name, size in sizes.items()
        if size
    ]
    return [*decoder_norms(config, names), *found]


def _latents(config: ModelConfig) -> Latents:
    assert config.latents is not None
    return config.latents


def read_youtu(values: ConfigValues, config: ModelConfig) -> ModelConfig:
    """Every layer has an MLP."""
    return with_latents(values, config, values.flag("rope_interleave", True))


# What its heads rotate is the size of a head in other files.
NAMES = {"head_dim": "qk_rope_head_dim"}
_SIZES = {
    "rms_norm_eps": 1e-6,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
}

YOUTU = Family(
    "YoutuForCausalLM",
    "youtu",
    "Youtu-LLM",
    "latent attention (MLA)",
    {**_SIZES, "max_position_embeddings": 131072, "tie_word_embeddings": True},
    read_youtu,
    linears=linears,
    norms=norms,
    names=NAMES,
)
