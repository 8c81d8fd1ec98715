"""Where a token's time goes: each kind of kernel alone, on one thread, over all layers of the model's own weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tinychat.errors import SettingError
from tinychat.kernels.activations import write_normed, write_plain, write_swiglu
from tinychat.kernels.attention import attend
from tinychat.kernels.embedding import embed
from tinychat.kernels.linear import head_alone, tokens_per_tile
from tinychat.kernels.rope import rope_append
from tinychat.kernels.threads import new_mailbox
from tinychat.model.scratch import allocate_attention

if TYPE_CHECKING:
    from tinychat.model.sequence import Sequence

ROUNDS = 5


@dataclass(frozen=True)
class Stage:
    """One kind of kernel: what runs it on a layer, and what it reads and computes there."""

    name: str
    run: Callable[[int], object]
    layers: int
    bytes: int = 0
    multiply_adds: int = 0


@dataclass(frozen=True)
class Share:
    """What one kind of kernel takes of a call of T tokens: seconds over all layers, bytes read, multiply-adds."""

    kernel: str
    seconds: float
    share: float
    bytes: int
    multiply_adds: int


def profile(sequence: Sequence, T: int, start: int) -> list[dict[str, object]]:
    """Time each kind of kernel for `T` tokens after `start`, most expensive first.

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
        If they do not fit: the kernels, which are run without the engine, look at no bounds.
    """
    if T > sequence.chunk_size or start + T > sequence.context_size:
        raise SettingError(f"{T} tokens after {start} do not fit into a context of {sequence.context_size}")
    sequence.rewind(0)
    found = [(stage, seconds_of(stage)) for stage in stages(sequence, T, start)]
    total = sum(seconds for _, seconds in found)
    shares = [
        Share(stage.name, seconds, seconds / total, stage.bytes * stage.layers, stage.multiply_adds * stage.layers)
        for stage, seconds in found
    ]
    return [asdict(share) for share in sorted(shares, key=lambda share: -share.seconds)]


def seconds_of(stage: Stage) -> float:
    """Return the median time of one pass over all layers."""
    stage.run(0)
    times = []
    for _ in range(ROUNDS):
        started = perf_counter()
        for layer in range(stage.layers):
            stage.run(layer)
        times.append(perf_counter() - started)
    return median(times)


def bytes_of(weight: Any) -> int:
    """Return the size of a weight's arrays."""
    return sum(part.nbytes if isinstance(part, np.ndarray) else bytes_of(part) for part in weight)


def stages(sequence: Sequence, T: int, start: int) -> Iterator[Stage]:
    """Yield the stages of the forward pass in its order; see `tinychat.model.forward`."""
    engine, cache = sequence.engine, sequence.cache.front
    _, _, _, parameters, sizes, _, x, _, scratch, job = engine.call_arguments()
    attention = allocate_attention(engine.config, start + T, 1, engine.kv)
    job.positions[:T] = np.arange(start, start + T)
    config, mailbox, norms = engine.config, new_mailbox(1), parameters.norms
    L, H, d = config.num_hidden_layers, config.num_attention_heads, config.head_dim
    tokens, eps, D = tokens_per_tile.py_func(T), sizes.rms_norm_eps, sizes.hidden_size
    heads = (T, scratch.qkv, H)

    def layers_of(stacked: Any) -> list[Any]:
        return [type(stacked)(*(array[layer] for array in stacked)) for layer in range(L)]

    def product(name: str, weights: list[Any], out: np.ndarray[Any, Any], rows: int, columns: int) -> Stage:
        size = bytes_of(weights[0])

        def run(layer: int) -> None:
            head_alone(mailbox, weights[layer], x, min(T, len(out)), out, scratch.tiles)

        return Stage(name, run, len(weights), size, rows * columns * min(T, len(out)))

    layers = layers_of(cache)
    qkv_proj, o_proj = layers_of(parameters.qkv_proj), layers_of(parameters.o_proj)
    gate_up_proj, down_proj = layers_of(parameters.gate_up_proj), layers_of(parameters.down_proj)
    F, keys = config.intermediate_size, config.num_key_value_heads * d

    def normed(layer: int) -> None:
        for gains in (norms.input_layernorm, norms.post_attention_layernorm):
            write_normed(0, 1, T, scratch.hidden, gains[layer], D, eps, qkv_proj[layer], x, tokens, scratch.rows)

    def rotated(layer: int) -> None:
        gains = norms.q_norm[layer], norms.k_norm[layer]
        rope_append(0, 1, *heads, job.cos_sin, job.positions, *gains, eps, layers[layer])

    def attended(layer: int) -> None:
        window = sizes.windows[layer]
        attend(0, 1, mailbox, *heads, d, job.positions, window, layers[layer], attention, scratch.attended)

    def embedded(_: int) -> None:
        embed(0, 1, parameters.embed_tokens, job.ids[:T], scratch.hidden)

    # Of what reads activations, each number's four bytes; of norms the sums of squares count, and scale and gain.
    token_bytes = bytes_of(parameters.embed_tokens) // config.vocab_size
    yield Stage("embedding", embedded, 1, T * token_bytes)
    yield Stage("norms and quantize", normed, L, 2 * (T + 1) * D * 4, 2 * T * D * 3)
    yield product("qkv_proj", qkv_proj, scratch.qkv, H * d + 2 * keys, D)
    yield Stage("rope and append", rotated, L, T * (H * d + 2 * keys) * 4, T * (H * d + keys) * 2)
    seen = sum(min(start + t + 1, window) for t in range(T) for window in sizes.windows.tolist()) // L
    yield Stage("attention", attended, L, (start + T) * sequence.cache.bytes_per_position // L, 2 * seen * H * d)
    yield Stage(
        "quantize attention",
        lambda layer: write_plain(0, 1, T, scratch.attended, o_proj[layer], x, tokens, scratch.rows),
        L,
        T * H * d * 4,
        T * H * d,
    )
    yield product("o_proj", o_proj, scratch.hidden, D, H * d)
    yield product("gate_up_proj", gate_up_proj, scratch.gate_up, 2 * F, D)
    yield Stage(
        "swiglu and quantize",
        lambda layer: write_swiglu(0, 1, T, scratch.gate_up, F, down_proj[layer], x, tokens, scratch.rows),
        L,
        T * 2 * F * 4,
        T * F * 3,
    )
    yield product("down_proj", down_proj, scratch.hidden, D, F)
    yield product("lm_head", [parameters.lm_head], job.logits[:1], config.vocab_size, D)
