"""Where a token's time goes: each stage of the forward pass as it runs, on all threads, from barrier to barrier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.errors import SettingError

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

    def product(name: str, weight: Any, copies: int, rows: int, columns: int, tokens: int = T) -> Stage:
        return Stage(name, bytes_of(weight) // copies, rows * columns * tokens)

    def normed(tokens: int = T) -> Stage:
        # Of what reads activations, each number's four bytes; the sums of squares count, and scale and gain.
        return Stage("norms and quantize", (tokens + 1) * D * 4, tokens * D * 3)

    yield Stage("embedding", T * (bytes_of(p.embed_tokens) // config.vocab_size))
    for window in p.layers.window.tolist():
        seen = sum(min(start + t + 1, window) for t in range(T))
        yield normed()
        yield product("qkv_proj", p.layers.qkv_proj, L, H * d + 2 * keys, D)
        yield Stage("rope and append", T * (H * d + 2 * keys) * 4, T * (H * d + keys) * 2)
        yield Stage("attention", (start + T) * sequence.cache.bytes_per_position // L, 2 * seen * H * d)
        yield Stage("quantize attention", T * H * d * 4, T * H * d)
        yield product("o_proj", p.layers.o_proj, L, D, H * d)
        yield normed()
        yield product("gate_up_proj", p.layers.gate_up_proj, L, 2 * F, D)
        yield Stage("swiglu and quantize", T * 2 * F * 4, T * F * 3)
        yield product("down_proj", p.layers.down_proj, L, D, F)
    yield normed(1)
    yield product("lm_head", p.lm_head, 1, config.vocab_size, D, 1)
