"""The decoder's working memory, allocated once: sizes follow from the configuration and the chunk size."""

import numpy as np

from tinychat.engine.arguments import Batch, Scratch
from tinychat.engine.blocks import blocks_for
from tinychat.engine.context import MAX_CONTEXT
from tinychat.kernels.buffers import (
    AttentionScratch,
    ExpertScratch,
    NoExperts,
    Routing,
    attention_scratch,
    max_partials,
    max_slots,
)
from tinychat.kernels.sizes import LANES, TILE_FLOATS, TOKENS
from tinychat.kernels.weights import ACTIVATION_GROUP, FineActivations, FloatActivations, QuantizedActivations
from tinychat.models.architectures import norms, weight_count
from tinychat.models.config import ModelConfig
from tinychat.models.layout import Quantization, padded

# Native models of fewer weights get finer activations: they have time to spare, and rounding to eight bits shows in
# what they say. SmolLM2-135M's next-token distributions differ 0.003 nats from float32's with eight bits.
FINE_WEIGHTS = 500_000_000
STAGES_AT_MOST = 24  # of a layer; and of what stands before and after them


def widest_input(config: ModelConfig, quantization: Quantization) -> int:
    """Return the largest padded K of any linear."""
    attended = config.num_attention_heads * config.head_dim
    widths = [config.hidden_size, config.intermediate_size, attended]
    if config.experts:
        widths += [config.experts.intermediate_size, config.experts.shared_intermediate_size]
    return padded(max(widths), quantization.column_multiple)


def allocate_scratch(config: ModelConfig, quantization: Quantization, chunk_size: int, threads: int) -> Scratch:
    """Return scratch for chunks of up to `chunk_size` tokens."""
    multiple = quantization.column_multiple
    attended = max(config.num_attention_heads * config.head_dim, config.hidden_size if config.conv_layers else 0)
    qkv = max(
        (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim,
        3 * config.hidden_size if config.conv_layers else 0,
    )

    def floats(columns: int) -> np.ndarray:
        return np.zeros((chunk_size, columns), np.float32)

    shared = config.experts.shared_intermediate_size if config.experts else 0
    inner = (1 + config.gated) * max(config.intermediate_size, shared)
    has_branch = shared or any(
        norm.name in ("post_self_attn_layernorm", "post_mlp_layernorm") for norm in norms(config)
    )
    rows = np.zeros((threads, widest_input(config, quantization) + LANES), np.float32)
    tiles = np.zeros((threads, TILE_FLOATS), np.float32)
    experts = NoExperts() if config.experts is None else allocate_experts(config, quantization, chunk_size, rows, tiles)
    # Vector loads may reach past a row's end by less than a weight group.
    return Scratch(
        x=allocate_activations(config, quantization, chunk_size),
        hidden=floats(padded(config.hidden_size, multiple)),
        last_hidden=floats(padded(config.hidden_size, multiple)),
        qkv=floats(padded(qkv, LANES) + LANES),
        attended=floats(padded(attended, multiple)),
        gate_up=floats(padded(inner, LANES) + LANES),
        branch=floats(padded(config.hidden_size, multiple)) if has_branch else np.zeros((0, 0), np.float32),
        rows=rows,
        tiles=tiles,
        experts=experts,
    )


def allocate_experts(
    config: ModelConfig, quantization: Quantization, chunk_size: int, rows: np.ndarray, tiles: np.ndarray
) -> ExpertScratch:
    """Return scratch for the experts of chunks of up to `chunk_size` tokens; rows, tiles : of the whole scratch."""
    experts, D = config.experts, padded(config.hidden_size, quantization.column_multiple)
    assert experts is not None
    count, used = experts.num_experts, experts.num_experts_per_tok
    slots = max_slots(chunk_size, used, count)
    width = max(D, padded(experts.intermediate_size, quantization.column_multiple))
    return ExpertScratch(
        routing=Routing(FloatActivations(np.zeros(padded(chunk_size, len(TOKENS)) * D, np.float32)), rows, tiles),
        x=activations(config, quantization, slots * width),
        logits=np.zeros((chunk_size, padded(count + 1, LANES) + LANES), np.float32),
        chosen=np.zeros((chunk_size, used), np.int64),
        weights=np.zeros((chunk_size, used + 1), np.float32),
        slots=np.zeros((chunk_size, used), np.int64),
        counts=np.zeros(count, np.int64),
        firsts=np.zeros(count, np.int64),
        active=np.zeros(1 + count, np.int64),
        gate_up=np.zeros((slots, padded(2 * experts.intermediate_size, LANES) + LANES), np.float32),
        down=np.zeros((slots, D), np.float32),
    )


def allocate_activations(
    config: ModelConfig, quantization: Quantization, chunk_size: int
) -> QuantizedActivations | FineActivations | FloatActivations:
    """Return the linears' input for up to `chunk_size` tokens."""
    return activations(config, quantization, padded(chunk_size, len(TOKENS)) * widest_input(config, quantization))


def activations(
    config: ModelConfig, quantization: Quantization, size: int
) -> QuantizedActivations | FineActivations | FloatActivations:
    """Return the linears' input of so many numbers."""
    if quantization.dtype == "f32":
        return FloatActivations(np.zeros(size, np.float32))
    group = quantization.smallest_group
    groups = size // (min(group, ACTIVATION_GROUP) if quantization.passthrough else group)
    floats = np.zeros((2, groups), np.float32)
    arrays = np.zeros(size, np.int8), floats[0], np.zeros(groups, np.int32), floats[1]
    if quantization.passthrough and weight_count(config) < FINE_WEIGHTS:
        return FineActivations(*arrays, np.zeros(size, np.int8))
    return QuantizedActivations(*arrays)


def allocate_attention(config: ModelConfig, context_size: int, threads: int, kv: str) -> AttentionScratch:
    """Return attention's scratch for sequences of up to `context_size` tokens."""
    return attention_scratch(kv, config.head_dim, threads, max_partials(context_size, threads))


def allocate_batch(config: ModelConfig, chunk_size: int) -> Batch:
    """Return the arrays that carry a call's particulars; tables take memory when they are written."""
    return Batch(
        counts=np.zeros(3, np.int64),
        ids=np.zeros(chunk_size, np.int64),
        positions=np.zeros(chunk_size, np.int64),
        sequences=np.zeros(chunk_size, np.int64),
        firsts=np.zeros(chunk_size + 1, np.int64),
        # One more: attention asks for the memory of the block after the last.
        tables=np.zeros((chunk_size, blocks_for(MAX_CONTEXT) + 1), np.int32),
        wanted=np.zeros(chunk_size, np.int64),
        clocks=np.zeros(STAGES_AT_MOST * (config.num_hidden_layers + 1), np.int64),
        cos_sin=np.zeros((1 + max(config.angle_sets), chunk_size, config.rotary_dim), np.float32),
        query_factors=np.zeros(chunk_size, np.float32),
    )
