"""Estimates for a model on this machine: bytes on disk, memory, tokens a second.

All of it follows from the number of its weights: nothing has to be downloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, perf_counter, sleep

from tinychat.engine.context import DEFAULT_CONTEXT
from tinychat.errors import ConversionError
from tinychat.machine import free_cores, usable_cores
from tinychat.models.architectures import linears, weight_count
from tinychat.models.tensors import Linear
from tinychat.models.varied_layers import LAYER_INPUTS
from tinychat.store.catalog import CatalogEntry

# Most bits of a weight, embedding included, where nothing is said: the first for models below SMALL weights.
SMALL = 500_000_000
SMALL_BITS, LARGE_BITS = 4.95, 4.5
# Of MXFP4, and of what is rounded to eight bits, with scales: beside it, and of embedding models.
_MXFP4_BITS, _ROUNDED_BITS = 4.25, 8.5
# Python, Numba's compiler and the libraries beside them; measured with one-shot completions.
PROGRAM_BYTES = 300 << 20
# Of a chat's KV cache.
_BYTES_PER_CACHED_NUMBER = 2
# Of states, a sequence has some that take turns, beside its snapshots, one in so many positions.
_STATES, _SNAPSHOT = 3, 512
# The share of the memory's speed that decoding leaves, and what a layer takes beside the reading of its weights, and as
# much again where it has a state or experts: `scripts/compare_estimates.py`, at the beginning of a conversation.
_SHARE_OF_BANDWIDTH, _SECONDS_PER_PART = 0.87, 25e-6
# Far beyond most caches, and soon filled; and how often parts of it are read.
_BUFFER_BYTES, _ROUNDS, _BYTES_READ = 256 << 20, 8, 1 << 31
# How long to wait for free cores, and between two looks at them.
_PATIENCE_SECONDS, _PAUSE_SECONDS = 2.0, 0.02


def default_bits(weights: int) -> float:
    """Return the largest average of bits per weight of an int4 model of so many weights."""
    return SMALL_BITS if weights < SMALL else LARGE_BITS


def disk_bytes(entry: CatalogEntry) -> int:
    """Return the size of a model folder as it is made by default."""
    return _stored_bytes(entry, lambda linear: 1) + entry.vision


def memory_bytes_needed(entry: CatalogEntry) -> int:
    """Return the bytes of memory of a chat once its context, of the default size, is full."""
    config, context = entry.config, min(entry.context, DEFAULT_CONTEXT)
    sizes = ((count, heads, d, d if config.varied else config.value_dim) for count, heads, d in config.cache_shapes)
    cached = sum(count * heads * (keys + values) for count, heads, keys, values in sizes)
    cache = context * cached * _BYTES_PER_CACHED_NUMBER
    states = (_STATES + context // _SNAPSHOT) * config.recurrence.state_bytes if config.recurrence else 0
    in_memory = _stored_bytes(entry, lambda linear: linear.name != LAYER_INPUTS) + entry.vision
    return in_memory + cache + states + PROGRAM_BYTES


def tokens_per_second(entry: CatalogEntry, bandwidth: Callable[[int], float]) -> float:
    """Return the decode rate at the beginning of a conversation.

    `bandwidth` is that of so many bytes, in GB/s, as `memory_bandwidth` measures it: a cache may hold a small model.
    """
    config, experts, states = entry.config, entry.config.experts, entry.config.recurrence
    looked_up = (LAYER_INPUTS,) if config.tie_word_embeddings else (LAYER_INPUTS, "embed_tokens")

    def share_read(linear: Linear) -> float:
        if linear.layers is None:
            return linear.name not in looked_up
        chosen = experts.num_experts_per_tok / linear.experts if linear.experts and experts else 1
        return config.runs_per_layer * chosen

    weights = _stored_bytes(entry, share_read)
    # A state is read and written.
    read = weights + (2 * states.state_bytes if states else 0)
    speed = bandwidth(min(weights, _BUFFER_BYTES))
    parts = len(config.layer_runs) + len(config.state_layers) + (len(experts.layers) if experts else 0)
    return 1 / (read / (_SHARE_OF_BANDWIDTH * speed * 1e9) + parts * _SECONDS_PER_PART)


def _stored_bytes(entry: CatalogEntry, share: Callable[[Linear], float]) -> int:
    """Return the bytes of a model's weights, of each linear a share of them."""
    is_rounded = entry.mxfp4 or not entry.writes
    bits = _ROUNDED_BITS if is_rounded else default_bits(weight_count(entry.config))

    def bits_of(linear: Linear) -> float:
        return _MXFP4_BITS if entry.mxfp4 and linear.experts else bits

    return round(sum(linear.weights * share(linear) * bits_of(linear) for linear in linears(entry.config)) / 8)


def memory_bandwidth(buffer_bytes: int = _BUFFER_BYTES) -> float:
    """Measure how fast all cores together read so many bytes again and again by NumPy, in GB/s (1e9 bytes).

    That takes some tenths of a second, no compiled kernel, and gives some tenths less than `tinychat bench` says.
    """
    # Imported here: only this needs them.
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    import numpy.typing as npt

    rounds = max(_ROUNDS, _BYTES_READ // buffer_bytes)

    def seconds(part: npt.NDArray[np.int32]) -> float:
        found = []
        for _ in range(rounds):
            started = perf_counter()
            # The largest of integers is found by vectors.
            part.max()
            found.append(perf_counter() - started)
        # Not the fastest, which a core may have read while another had ended.
        return sorted(found)[rounds // 4]

    threads = len(usable_cores()) or os.cpu_count() or 1
    # Ones, not zeros: zeros that were never written are all one page.
    parts = np.array_split(np.ones(buffer_bytes // 4, np.int32), threads)
    with ThreadPoolExecutor(threads) as pool:
        return sum(part.nbytes for part in parts) / max(pool.map(seconds, parts)) / 1e9


def cores_become_free(seconds: float = _PATIENCE_SECONDS) -> bool:
    """Wait until other programs leave all cores to this one, for some seconds at most; return whether they do.

    Where the system does not say how busy it is, it counts as free.
    """
    cores, until = len(usable_cores()) or os.cpu_count() or 1, monotonic() + seconds
    while True:
        free = free_cores()
        # The one that runs this is not free.
        if free is None or free + 1 >= cores:
            return True
        if monotonic() >= until:
            return False
        sleep(_PAUSE_SECONDS)


def check_space(needs: Sequence[tuple[str, Path, int]]) -> None:
    """Raise a ConversionError unless the disks have room: `needs` has what will be written, its path, and its bytes."""
    disks: dict[int, list[tuple[str, Path, int]]] = {}
    for what, path, size in needs:
        folder = next(parent for parent in [path.absolute(), *path.absolute().parents] if parent.exists())
        disks.setdefault(folder.stat().st_dev, []).append((what, folder, size))
    for parts in disks.values():
        folder, needed = parts[0][1], sum(size for _, _, size in parts)
        free = shutil.disk_usage(folder).free
        if needed > free:
            wanted = " and ".join(f"{what} ({gigabytes(size)})" for what, _, size in parts if size)
            raise ConversionError(
                f"{gigabytes(needed)} are needed on the disk of {folder} for {wanted}, and {gigabytes(free)} are free:"
                " free some space"
            )


def gigabytes(count: int) -> str:
    """Format a number of bytes."""
    return f"{count / 1e9:.2f} GB"


def positions(count: int) -> str:
    """Format the size of a context."""
    return f"{count // 1024}k" if count >= 1024 else str(count)
