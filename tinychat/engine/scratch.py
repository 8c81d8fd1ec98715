"""The decoder's working memory, allocated once: as wide as the stages say that they need it (`engine.counting`)."""

from typing import Any

import numpy as np

from tinychat.engine.arguments import Batch, Scratch
from tinychat.engine.blocks import blocks_for
from tinychat.engine.context import MAX_CONTEXT
from tinychat.kernels.amx_buffer import BUFFER_FLOATS, HAS_TILE_REGISTERS
from tinychat.kernels.buffers import (
    AttentionScratch,
    DeltaScratch,
    ExpertScratch,
    FloatScratch,
    LatentScratch,
    NoExperts,
    NoLatents,
    NoStates,
    NoStreams,
    StreamScratch,
    attention_scratch,
    max_partials,
    max_slots,
    zeros_on_lines,
)
from tinychat.kernels.sizes import HAS_VBMI, LANES, SUMS_FLOATS, TILE_FLOATS, TOKENS
from tinychat.kernels.weights import (
    ACTIVATION_GROUP,
    FineActivations,
    FineRowActivations,
    FloatActivations,
    QuantizedActivations,
    RowActivations,
)
from tinychat.models.architectures import weight_count
from tinychat.models.config import ModelConfig
from tinychat.models.layout import Quantization, padded

# Native models of fewer weights get finer activations: they have time to spare, and rounding to eight bits shows in
# what they say. SmolLM2-135M's next-token distributions differ 0.003 nats from float32's with eight bits.
FINE_WEIGHTS = 500_000_000
PLAIN, FINE = (RowActivations, FineRowActivations) if HAS_TILE_REGISTERS else (QuantizedActivations, FineActivations)


def allocate_scratch(
    config: ModelConfig, quantization: Quantization, chunk_size: int, threads: int, widths: Any
) -> Scratch:
    """Return scratch for chunks of up to `chunk_size` tokens; widths : of `engine.counting.Counter`."""

    def floats(*names: str, rows: int = chunk_size, widths: Any = widths) -> dict[str, np.ndarray]:
        return {name: zeros_on_lines((rows, getattr(widths, name).columns), np.float32) for name in names}

    tokens, experts, states = padded(chunk_size, len(TOKENS)), widths.experts, widths.states
    inputs = widths.x, experts.x, experts.routing.x, widths.latents.x, states.inputs.x
    # Of any linear's input, and a vector more, which loads may reach into.
    rows = zeros_on_lines((threads, max(each.columns for each in inputs) + LANES), np.float32)
    tile_floats = BUFFER_FLOATS if HAS_TILE_REGISTERS else TILE_FLOATS
    if HAS_VBMI and any(form.bits == 1 for _, linear in quantization.passthrough for form in linear.forms):
        tile_floats = max(tile_floats, TILE_FLOATS + rows.shape[1] // ACTIVATION_GROUP * SUMS_FLOATS)
    tiles = zeros_on_lines((threads, tile_floats), np.float32)
    scratch = Scratch(
        x=activations(config, quantization, tokens * widths.x.columns),
        rows=rows,
        tiles=tiles,
        experts=NoExperts(),
        latents=NoLatents(),
        states=NoStates(),
        streams=NoStreams(),
        **floats("hidden", "last_hidden", "qkv", "attended", "gate_up", "branch", "inputs", "images", "kept"),
    )
    if config.latents or config.compressed:
        heads = config.compressed.value_heads if config.compressed else config.num_attention_heads
        x = activations(config, quantization, heads * tokens * widths.latents.x.columns)
        arrays = floats("down", "low", "queries", "values", widths=widths.latents)
        scratch = scratch._replace(latents=LatentScratch(x, **arrays))
    if config.state_layers or config.gated_attention or config.gated_heads:
        x = FloatActivations(np.zeros(tokens * states.inputs.x.columns, np.float32))
        arrays = floats("gates", "decays", "low", "factors", "out", "heads", widths=states)
        scratch = scratch._replace(states=DeltaScratch(inputs=FloatScratch(x, rows, tiles), **arrays))
    if config.altup or config.mixtures:
        scratch = scratch._replace(streams=StreamScratch(**floats(*StreamScratch._fields, widths=widths.streams)))
    if config.choice is None:
        return scratch
    count, used = config.choice.num_experts, config.choice.num_experts_per_tok
    slots = max_slots(chunk_size, used, config.choice.choices)
    router_inputs = FloatActivations(np.zeros(tokens * experts.routing.x.columns, np.float32))
    allocated = ExpertScratch(
        routing=FloatScratch(router_inputs, rows, tiles),
        x=activations(config, quantization, slots * experts.x.columns),
        chosen=np.zeros((chunk_size, used), np.int64),
        weights=np.zeros((chunk_size, used + 1), np.float32),
        slots=np.zeros((chunk_size, used), np.int64),
        counts=np.zeros(config.choice.choices, np.int64),
        firsts=np.zeros(config.choice.choices, np.int64),
        active=np.zeros(1 + count, np.int64),
        **floats("logits", "states", "inner", widths=experts),
        **floats("gate_up", "down", rows=slots, widths=experts),
    )
    return scratch._replace(experts=allocated)


def activations(config: ModelConfig, quantization: Quantization, size: int) -> Any:
    """Return the linears' input of so many numbers."""
    if quantization.dtype == "f32":
        return FloatActivations(np.zeros(size, np.float32))
    group = quantization.smallest_group
    groups = size // (min(group, ACTIVATION_GROUP) if quantization.passthrough else group)
    floats = np.zeros((2, groups), np.float32)
    arrays = zeros_on_lines(size, np.int8), floats[0], np.zeros(groups, np.int32), floats[1]
    if quantization.passthrough and weight_count(config) < FINE_WEIGHTS:
        return FINE(*arrays, zeros_on_lines(size, np.int8))
    return PLAIN(*arrays)


def allocate_attention(config: ModelConfig, context_size: int, threads: int, kv: str) -> AttentionScratch:
    """Return attention's scratch for sequences of up to `context_size` tokens."""
    slots, largest = max_partials(context_size, threads), max(size for _, _, size in config.cache_shapes)
    return attention_scratch(kv, largest, threads, slots, value_dim=largest if config.varied else config.value_dim)


def allocate_batch(config: ModelConfig, chunk_size: int, stages: int) -> Batch:
    """Return the arrays of a step of as many stages; tables take memory when they are written."""
    return Batch(
        counts=np.zeros(4, np.int64),
        ids=np.zeros(chunk_size, np.int64),
        positions=np.zeros(chunk_size, np.int64),
        vectors=np.zeros(chunk_size, np.int64),
        sequences=np.zeros(chunk_size, np.int64),
        firsts=np.zeros(chunk_size + 1, np.int64),
        # One more: attention asks for the memory of the block after the last.
        tables=np.zeros((chunk_size, blocks_for(MAX_CONTEXT) + 1), np.int32),
        wanted=np.zeros(chunk_size, np.int64),
        # Where the next time goes, that of the beginning, and of each stage's end.
        clocks=np.zeros(2 + stages, np.int64),
        cos_sin=np.zeros((1 + max(config.angle_sets), chunk_size, max(config.rotary_dims)), np.float32),
        query_factors=np.zeros(chunk_size, np.float32),
        states=np.zeros((4, chunk_size if config.state_layers else 0), np.int64),
        images=np.zeros(chunk_size if config.image_token_id is not None else 0, np.int64),
        kept=np.full(len(config.layer_runs) + 1, -1, np.int64),
    )
