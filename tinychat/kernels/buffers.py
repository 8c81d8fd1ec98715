"""Arrays that kernels work in: the cache, and the scratch of attention and of experts."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinychat.kernels.amx_buffer import BUFFER_FLOATS, HAS_TILE_REGISTERS
from tinychat.kernels.sizes import (
    BLOCK,
    CHUNK,
    ITEM_ROWS,
    ITEMS_PER_THREAD,
    LANES,
    MULTIPLIES_PAIRS,
    PER_LANE,
    STORAGE,
    TOKENS,
)

LINE = 64  # bytes of a cache line


def zeros_on_lines(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Return zeros that begin on a cache line: vectors and tile registers that lie in two lines take twice as long."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + LINE, np.uint8)
    return room[-room.ctypes.data % LINE :][:size].view(dtype).reshape(shape)


class CacheBuffers(NamedTuple):
    """Keys, values and scales of all blocks."""

    keys: np.ndarray
    values: np.ndarray
    scales: np.ndarray


class TwoCaches(NamedTuple):
    """The same of layers whose heads are of two sizes, or of one layer of them: only the one of its size is read."""

    narrow: Any
    wide: Any


class LayerCache(NamedTuple):
    """Keys, values and scales of all blocks, and the index of a layer."""

    keys: np.ndarray
    values: np.ndarray
    scales: np.ndarray
    layer: int


def empty_buffers(kv: str, blocks: int, layers: int, heads: int, d: int, value_dim: int | None = None) -> CacheBuffers:
    """Return zeros for so many blocks of 64 positions, of heads of size d, whose values may be narrower.

    The system takes memory for them when it is written.
    """
    shared, padded = PER_LANE.get(kv, 1), -(-(value_dim or d) // LANES) * LANES
    stack = blocks, layers, heads
    return CacheBuffers(
        zeros_on_lines((*stack, BLOCK // LANES, d // shared, LANES), STORAGE[kv]),
        zeros_on_lines((*stack, BLOCK // shared, padded), STORAGE[kv]),
        np.zeros((*stack, 2, BLOCK if kv == "int8" else 0), np.float32),
    )


def caches_of(buffers: CacheBuffers | TwoCaches) -> tuple[CacheBuffers, ...]:
    """Return the buffers of each size of heads."""
    return (buffers.narrow, buffers.wide) if isinstance(buffers, TwoCaches) else (buffers,)


class Moves(NamedTuple):
    """The sources of a cache's positions, and the angles by which keys are rotated on the way.

    first : int, the first position that is written, a multiple of 64; sources : int64 [n], the position whose key and
    value each from there on takes; turns : float32 [sets, n, largest rotary_dim], cosines and sines of the angles;
    angle_sets : int64 [L], the set of a layer of the cache; rotary_dims : int64 [L].
    """

    first: int
    sources: np.ndarray
    turns: np.ndarray
    angle_sets: np.ndarray
    rotary_dims: np.ndarray


class SoftmaxState(NamedTuple):
    """Sums over the positions so far for the rows of an item; of many items, one axis more in front.

    Rows have room for one vector more: no two threads write to one cache line.
    """

    maxima: np.ndarray  # float32 [ITEM_ROWS + 16]: m, the largest score
    sums: np.ndarray  # float32 [ITEM_ROWS + 16]: of 2**(score - m)
    acc: np.ndarray  # float32 [ITEM_ROWS, d rounded up to 16]: of 2**(score - m) v


class AttentionScratch(NamedTuple):
    """Scratch of attention.

    Factors of pairs of keys and values are pairs (uint32) where that is fast, those of codes are codes (int32), and
    others float32. Factors that share an element are apart from the scores.
    """

    queries: np.ndarray  # [threads, d rounded up to 16, ITEM_ROWS], in the order of `Item`; less where they share
    query_scales: np.ndarray  # float32 [threads, ITEM_ROWS + 16]: of codes
    query_starts: np.ndarray  # int32 [threads, ITEM_ROWS + 16]: where sums of their products begin
    scores: np.ndarray  # float32 [threads, ITEM_ROWS, BLOCK]
    weights: np.ndarray  # [threads, ITEM_ROWS, BLOCK]: in the place of the scores; less where they share
    weight_steps: np.ndarray  # float32 [threads, ITEM_ROWS + 16]: of codes, the weight of 1
    positions: np.ndarray  # int64 [threads, ITEM_ROWS], and so is the next
    ends: np.ndarray
    lanes: np.ndarray  # float32 [threads, 2 ITEM_ROWS * 16]
    rescale: np.ndarray  # float32 [threads, ITEM_ROWS + 16], and so is the next
    part_rescale: np.ndarray
    tiles: np.ndarray  # float32 [threads, BUFFER_FLOATS] where attention uses tile registers, else [threads, 0]
    totals: SoftmaxState  # [threads]
    partials: SoftmaxState  # [slots], and one for each thread at least


def new_state(count: int, d: int) -> SoftmaxState:
    """Return the states of so many items."""
    rows = (count, ITEM_ROWS + LANES)
    acc = (count, ITEM_ROWS, -(-d // LANES) * LANES)
    return SoftmaxState(np.zeros(rows, np.float32), np.zeros(rows, np.float32), zeros_on_lines(acc, np.float32))


def attention_scratch(
    kv: str,
    d: int,
    threads: int,
    slots: int,
    multiplies_pairs: bool = MULTIPLIES_PAIRS,
    value_dim: int | None = None,
) -> AttentionScratch:
    """Return scratch for a cache of that type, with `slots` states of parts that are merged later.

    multiplies_pairs : whether pairs of the cache are multiplied by pairs; value_dim : size of values, d when omitted.
    """
    shared = 1 if kv == "bf16" and not multiplies_pairs else PER_LANE.get(kv, 1)
    factors = STORAGE[kv] if shared > 1 else np.dtype(np.float32)
    numbers = np.zeros((4, threads, ITEM_ROWS + LANES), np.float32)
    rescale, part_rescale, query_scales, weight_steps = numbers
    scores = zeros_on_lines((threads, ITEM_ROWS, BLOCK), np.float32)
    return AttentionScratch(
        queries=zeros_on_lines((threads, -(-d // LANES) * LANES // shared, ITEM_ROWS), factors),
        query_scales=query_scales,
        query_starts=np.zeros((threads, ITEM_ROWS + LANES), np.int32),
        scores=scores,
        weights=zeros_on_lines((threads, ITEM_ROWS, BLOCK // shared), factors) if shared > 1 else scores,
        weight_steps=weight_steps,
        positions=np.zeros((threads, ITEM_ROWS), np.int64),
        ends=np.zeros((threads, ITEM_ROWS), np.int64),
        lanes=zeros_on_lines((threads, 2 * ITEM_ROWS * LANES), np.float32),
        rescale=rescale,
        part_rescale=part_rescale,
        tiles=zeros_on_lines((threads, BUFFER_FLOATS if HAS_TILE_REGISTERS and kv == "bf16" else 0), np.float32),
        totals=new_state(threads, value_dim or d),
        partials=new_state(max(threads, slots), value_dim or d),
    )


def max_partials(context: int, threads: int) -> int:
    """Return the largest number of parts of sequences of up to `context` positions in one step."""
    return threads * ITEMS_PER_THREAD * -(-context // CHUNK)


class NoExperts(NamedTuple):
    """A model without experts."""


class FloatScratch(NamedTuple):
    """Scratch of a float32 linear beside quantized ones."""

    x: Any  # FloatActivations of C tokens
    rows: np.ndarray  # float32 [threads, >= K]
    tiles: np.ndarray  # float32 [threads, TILE_FLOATS]


class ExpertScratch(NamedTuple):
    """Working memory of mixtures of experts, for up to C tokens, k choices of each, E experts and S slots."""

    routing: FloatScratch
    x: Any  # activations by slot
    logits: np.ndarray  # float32 [C, E + 1 padded, and 16 more]
    chosen: np.ndarray  # int64 [C, k]: experts, the likeliest first
    weights: np.ndarray  # float32 [C, k + 1]: of the chosen experts; last the shared expert
    slots: np.ndarray  # int64 [C, k]
    counts: np.ndarray  # int64 [E], or [E + 1] where the last choice is none: rows of each
    firsts: np.ndarray  # int64, as many: its first slot
    active: np.ndarray  # int64 [1 + E]: how many experts have rows, then these
    gate_up: np.ndarray  # float32 [S, 2 F + slack]
    down: np.ndarray  # float32 [S, D]
    states: np.ndarray  # float32 [C, R, zeros behind]: what a router's MLP reads, and carries to the next layer
    inner: np.ndarray  # float32 [C, R + slack]: in that MLP


class NoStates(NamedTuple):
    """A model without states."""


class NoLatents(NamedTuple):
    """A model without latent attention."""


class LatentScratch(NamedTuple):
    """Working memory of latent attention, for up to C tokens; of compressed attention `x` alone."""

    x: Any  # activations by head
    down: np.ndarray  # float32 [C, latents of queries and of the key]; or the queries, and the latent of the key
    low: np.ndarray  # float32 [C, latent of queries, normed]
    queries: np.ndarray  # float32 [C, H (qk_nope_head_dim + rotated)]
    values: np.ndarray  # float32 [C, H v_head_dim]


class NoStreams(NamedTuple):
    """A model with one residual stream."""


class StreamScratch(NamedTuple):
    """Working memory of AltUp (`kernels.altup`) or of mixtures (`kernels.block_mixtures`), for up to C tokens."""

    others: np.ndarray  # float32 [C, 3 D]: the streams besides the residual stream; or [C, slots D]: the slots
    before: np.ndarray  # float32 [C, D]: the residual stream's prediction, or what it is behind attention
    factors: np.ndarray  # float32 [C, 32]: of predictions or corrections, and behind them what they are made of
    low: np.ndarray  # float32 [C, laurel_rank padded, zeros behind], or what the gates of messages are linears of
    mixed: np.ndarray  # float32 [C, D]: of mixtures alone, and so are the next
    message: np.ndarray  # float32 [C, D]
    gates: np.ndarray  # float32 [C, 2 D]: of messages
    keys: np.ndarray  # float32 [C, G d]
    values: np.ndarray  # float32 [C, G d]


class DeltaScratch(NamedTuple):
    """Working memory of layers with a state, of Gated DeltaNet first, for up to C tokens."""

    inputs: FloatScratch  # of the linear of gates
    gates: np.ndarray  # float32 [C, 2 Hv + slack]
    decays: np.ndarray  # float32 [C, 2 Hk dk]: of channels, and products of these and keys
    low: np.ndarray  # float32 [C, dk padded]: what gates of the output are linears of, zeros behind
    factors: np.ndarray  # float32 [C, 2 Hv + 2 Hk]
    out: np.ndarray  # float32 [C, Hv dv]
    heads: np.ndarray  # float32 [C, H d]: gates of what attention gives, or of what states give


def max_slots(tokens: int, chosen: int, experts: int) -> int:
    """Return the number of slots that tokens may need: experts begin at a tile, and their last tile may not be full."""
    return tokens * chosen + min(experts, tokens * chosen) * 2 * (len(TOKENS) - 1)
