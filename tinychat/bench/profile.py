"""Where a token's time goes: each stage of the forward pass as it runs, on all threads, from barrier to barrier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.engine.arguments import ExpertMlp, GatedMlp, HybridLayers, ParallelMlp
from tinychat.engine.blocks import bytes_per_position
from tinychat.errors import SettingError
from tinychat.kernels.variants import NoNorm, NoPositions
from tinychat.kernels.weights import PerLayer
from tinychat.models.config import ModelConfig

if TYPE_CHECKING:
    from tinychat.engine.sequence import Sequence

ROUNDS = 5


@dataclass(frozen=True)
class Stage:
    """One stage of one layer: its kind, and what it reads and computes there."""

    kind: str
    bytes: int = 0
    multiply_adds: int = 0


@dataclass(frozen=True)
class Share:
    """What one kind of stage takes of a step of T tokens: seconds over all layers, bytes read, multiply-adds."""

    kernel: str
    seconds: float
    share: float
    bytes: int
    multiply_adds: int


def profile(sequence: Sequence, T: int, start: int) -> list[dict[str, object]]:
    """Time each kind of stage for `T` tokens after `start`, most expensive first.

    Parameters
    ----------
    sequence : Sequence
        It is emptied.
    T : int
        At most the sequence's chunk size.
    start : int
        Positions before them.

    Raises
    ------
    SettingError
        If they do not fit.
    """
    if T > sequence.chunk_size or start + T > sequence.context_size:
        raise SettingError(f"{T} tokens after {start} do not fit into a context of {sequence.context_size}")
    ids = np.random.default_rng(1).integers(0, sequence.vocab_size, start + T).tolist()
    sequence.rewind(0)
    for first in range(0, start, sequence.chunk_size):
        sequence.step(ids[first : min(first + sequence.chunk_size, start)])
    seconds = np.median([seconds_of_stages(sequence, ids[start:]) for _ in range(ROUNDS)], axis=0)
    sequence.rewind(0)
    total = float(seconds.sum())
    by_kind: dict[str, list[tuple[float, Stage]]] = defaultdict(list)
    for stage, taken in zip(stages(sequence, T, start), seconds.tolist(), strict=True):
        by_kind[stage.kind].append((taken, stage))
    shares = [
        Share(
            kind,
            sum(taken for taken, _ in found),
            sum(taken for taken, _ in found) / total,
            sum(stage.bytes for _, stage in found),
            sum(stage.multiply_adds for _, stage in found),
        )
        for kind, found in by_kind.items()
    ]
    return [asdict(share) for share in sorted(shares, key=lambda share: -share.seconds)]


def seconds_of_stages(sequence: Sequence, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return what each stage of a step takes; the sequence is afterwards as it was."""
    start = len(sequence.ids)
    found = sequence.engine.stage_seconds(lambda: sequence.step(ids))
    sequence.rewind(start)
    return found


def bytes_of(weight: Any) -> int:
    """Return the size of a weight's arrays."""
    return sum(part.nbytes if isinstance(part, np.ndarray) else bytes_of(part) for part in weight)


def stages(sequence: Sequence, T: int, start: int) -> Iterator[Stage]:
    """Yield the stages of the forward pass in its order; see `tinychat.engine.forward`."""
    config, p = sequence.engine.config, sequence.engine.parameters
    L, H, d = config.num_hidden_layers, config.num_attention_heads, config.head_dim
    D, F, keys = config.hidden_size, config.intermediate_size, config.num_key_value_heads * d

    cache_bytes = bytes_per_position(config, sequence.engine.kv) // len(config.cache_layers)
    hybrid = isinstance(p.layers, HybridLayers)
    attention = p.layers.mixer.first if hybrid else p.layers
    attentions = len(config.attention_layers)

    def product(name: str, weight: Any, copies: int, rows: int, columns: int, tokens: int = T) -> Stage:
        return Stage(name, bytes_of(weight) // copies, rows * columns * tokens)

    def normed(tokens: int = T) -> Stage:
        # Of what reads activations, each number's four bytes; the sums of squares count, and scale and gain.
        return Stage("norms and quantize", (tokens + 1) * D * 4, tokens * D * 3)

    def add(name: str, copies: int, weight: Any, columns: int, norm: Any) -> Iterator[Stage]:
        yield product(name, weight, copies, D, columns)
        if not isinstance(norm, NoNorm):
            yield Stage("norms after", T * D * 12, T * D * 4)

    parallel, mixed = isinstance(p.layers.mlp, ParallelMlp), isinstance(p.layers.mlp, PerLayer)
    mlp = p.layers.mlp.mlp if parallel else p.layers.mlp.second if mixed else p.layers.mlp
    first = "gate_up_proj" if isinstance(mlp, GatedMlp | ExpertMlp) else "up_proj"
    first_rows = 2 * F if isinstance(mlp, GatedMlp) else F
    experts = config.experts.layers if config.experts else ()
    copies = L - len(experts)

    def begin_mlp() -> Iterator[Stage]:
        yield normed()
        yield product(first, getattr(mlp, first), copies, first_rows, D)

    yield Stage("embedding", T * (bytes_of(p.embed_tokens) // config.vocab_size))
    if not isinstance(p.embed_positions, NoPositions) or not isinstance(p.embed_norm, NoNorm):
        yield Stage("end of embedding", T * D * 12, T * D)
    for layer, window in enumerate(config.sliding_windows):
        yield normed()
        if layer in config.conv_layers:
            convolution, seen = p.layers.mixer.second, config.conv_L_cache
            yield product("conv_in_proj", convolution.in_proj, L - attentions, 3 * D, D)
            yield Stage("short convolution", T * D * 4 * (3 + seen), T * D * (2 + seen))
            yield Stage("quantize convolution", T * D * 4, T * D)
            yield product("conv_out_proj", convolution.out_proj, L - attentions, D, D)
        else:
            seen = sum(min(start + t + 1, window or start + T) for t in range(T))
            yield product("qkv_proj", attention.qkv_proj, attentions, H * d + 2 * keys, D)
            if parallel:
                yield from begin_mlp()
            if config.qk_norm == "width":
                yield Stage("norms of queries and keys", T * (H * d + keys) * 8, T * (H * d + keys) * 3)
            yield Stage("rope and append", T * (H * d + 2 * keys) * 4, T * (H * d + keys) * 2)
            yield Stage("attention", (start + T) * cache_bytes, 2 * seen * H * d)
            yield Stage("quantize attention", T * H * d * 4, T * H * d)
            yield from add("o_proj", attentions, attention.o_proj, H * d, attention.post_self_attn_layernorm)
        if layer in experts:
            yield from expert_stages(p.layers.mlp.first if mixed else p.layers.mlp, config, T)
            continue
        if not parallel:
            yield from begin_mlp()
        yield Stage("activation and quantize", T * first_rows * 4, T * F * 3)
        yield from add("down_proj", copies, mlp.down_proj, F, mlp.post_mlp_layernorm)
    yield Stage("norms and quantize", D * 4)
    yield normed(1)
    yield product("lm_head", p.lm_head, 1, config.vocab_size, D, 1)
    if config.logits_softcap is not None:
        yield Stage("soft cap", config.vocab_size * 4, config.vocab_size * 4)


def expert_stages(mlp: ExpertMlp, config: ModelConfig, T: int) -> Iterator[Stage]:
    """Yield the stages of a layer's experts.

    Which are chosen is not known: T tokens are taken to choose as different ones as they can.
    """
    assert config.experts is not None
    L, E, D = len(config.experts.layers), config.experts.num_experts, config.hidden_size
    used, F, S = (
        config.experts.num_experts_per_tok,
        config.experts.intermediate_size,
        config.experts.shared_intermediate_size,
    )
    rows = T * used
    read = min(E, rows)

    def product(name: str, weight: Any, copies: int, size: int) -> Stage:
        return Stage(name, bytes_of(weight) // copies, size)

    def routed(name: str, weight: Any, size: int) -> Stage:
        return Stage(name, bytes_of(weight) // (L * E) * read, rows * size)

    yield Stage("norms and quantize", (T + 1) * D * 4, T * D * 3)
    yield product("router", mlp.router, L, T * D * E)
    yield Stage("choice of experts", T * E * 4, T * E * used)
    yield Stage("slots of experts", T * used * 8)
    if S:
        yield Stage("norms and quantize", (T + 1) * D * 4, T * D * 3)
        yield product("shared_gate_up_proj", mlp.shared.gate_up_proj, L, T * D * 2 * S)
        yield Stage("activation and quantize", T * S * 8, T * S * 3)
        yield product("shared_down_proj", mlp.shared.down_proj, L, T * D * S)
    yield Stage("norms and quantize", (rows + 1) * D * 4, rows * D * 3)
    yield routed("expert_gate_up_proj", mlp.gate_up_proj, 2 * F * D)
    yield Stage("activation and quantize", rows * F * 8, rows * F * 3)
    yield routed("expert_down_proj", mlp.down_proj, F * D)
    yield Stage("sum of experts", (rows + 2 * T) * D * 4, rows * D)
