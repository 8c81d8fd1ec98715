"""The decoder's working memory, allocated once: as wide as the stages say that they need it (`engine.counting`)."""

from typing import Any

import numpy as np

from tinychat.engine.arguments import Batch, Scratch
from tinychat.engine.blocks import blocks_for
from tinychat.engine.context import MAX_CONTEXT
from tinychat.engine.counting import Width
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
from tinychat.models.architectures import weight_count
from tinychat.models.config import ModelConfig
from tinychat.models.layout import Quantization, padded

# Native models of fewer weights get finer activations: they have time to spare, and rounding to eight bits shows in
# what they say. SmolLM2-135M's next-token distributions differ 0.003 nats from float32's with eight bits.
FINE_WEIGHTS = 500_000_000


def allocate_scratch(
    config: ModelConfig, quantization: Quantization, chunk_size: int, threads: int, widths: Any
) -> Scratch:
    """Return scratch for chunks of up to `chunk_size` tokens; widths : of `engine.counting`."""

    def floats(width: Width) -> np.ndarray:
        return np.zeros((chunk_size, width.columns), np.float32)

    tokens = padded(chunk_size, len(TOKENS))
    # Of any linear's input, and a vector more, which loads may reach into.
    rows = np.zeros((threads, max(widths.x.columns, widths.experts.x.columns) + LANES), np.float32)
    tiles = np.zeros((threads, TILE_FLOATS), np.float32)
    return Scratch(
        x=activations(config, quantization, tokens * widths.x.columns),
        hidden=floats(widths.hidden),
        last_hidden=floats(widths.last_hidden),
        qkv=floats(widths.qkv),
        attended=floats(widths.attended),
        gate_up=floats(widths.gate_up),
        branch=floats(widths.branch),
        rows=rows,
        tiles=tiles,
        experts=allocate_experts(config, quantization, chunk_size, rows, tiles, widths.experts),
    )


def allocate_experts(
    config: ModelConfig,
    quantization: Quantization,
    chunk_size: int,
    rows: np.ndarray,
    tiles: np.ndarray,
    widths: Any,
) -> ExpertScratch | NoExperts:
    """Return scratch for the experts of chunks of up to `chunk_size` tokens; rows, tiles : of the whole scratch."""
    if config.experts is None:
        return NoExperts()
    count, used = config.experts.num_experts, config.experts.num_experts_per_tok
    slots, tokens = max_slots(chunk_size, used, count), padded(chunk_size, len(TOKENS))
    router_inputs = FloatActivations(np.zeros(tokens * widths.routing.x.columns, np.float32))
    return ExpertScratch(
        routing=Routing(router_inputs, rows, tiles),
        x=activations(config, quantization, slots * widths.x.columns),
        logits=np.zeros((chunk_size, widths.logits.columns), np.float32),
        chosen=np.zeros((chunk_size, used), np.int64),
        weights=np.zeros((chunk_size, used + 1), np.float32),
        slots=np.zeros((chunk_size, used), np.int64),
        counts=np.zeros(count, np.int64),
        firsts=np.zeros(count, np.int64),
        active=np.zeros(1 + count, np.int64),
        gate_up=np.zeros((slots, widths.gate_up.columns), np.float32),
        down=np.zeros((slots, widths.down.columns), np.float32),
    )


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


def allocate_batch(config: ModelConfig, chunk_size: int, stages: int) -> Batch:
    """Return the arrays of a step of as many stages; tables take memory when they are written."""
    return Batch(
        counts=np.zeros(3, np.int64),
        ids=np.zeros(chunk_size, np.int64),
        positions=np.zeros(chunk_size, np.int64),
        sequences=np.zeros(chunk_size, np.int64),
        firsts=np.zeros(chunk_size + 1, np.int64),
        # One more: attention asks for the memory of the block after the last.
        tables=np.zeros((chunk_size, blocks_for(MAX_CONTEXT) + 1), np.int32),
        wanted=np.zeros(chunk_size, np.int64),
        # Where the next time goes, that of the beginning, and of each stage's end.
        clocks=np.zeros(2 + stages, np.int64),
        cos_sin=np.zeros((1 + max(config.angle_sets), chunk_size, config.rotary_dim), np.float32),
        query_factors=np.zeros(chunk_size, np.float32),
    )
