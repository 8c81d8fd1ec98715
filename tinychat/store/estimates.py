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
# Of states; a sequence has some that take turns, beside its snapshots, one in so many positions.
_BYTES_PER_STATE_NUMBER, _STATES, _SNAPSHOT = 4, 3, 512
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
    return _stored_bytes(entry, entry.shape.weights, entry.shape.experts)


def _stored_bytes(entry: CatalogEntry, weights: int, experts: int) -> int:
    """Return the bytes of some weights of a model, those of so many experts of each layer among them."""
    if not entry.writes:
        return round(weights * _ROUNDED_BITS / 8)
    if not entry.mxfp4:
        return round(weights * default_bits(entry.shape.weights) / 8)
    kept = entry.shape.expert_weights(experts)
    return round((kept * _MXFP4_BITS + (weights - kept) * _ROUNDED_BITS) / 8)


def memory_bytes_needed(entry: CatalogEntry) -> int:
    """Return the bytes of memory of a chat once its context, of the default size, is full."""
    context = min(entry.context, DEFAULT_CONTEXT)
    cache = context * entry.shape.cache_numbers * _BYTES_PER_CACHED_NUMBER
    states = (_STATES + context // _SNAPSHOT) * entry.shape.state_numbers * _BYTES_PER_STATE_NUMBER
    in_memory = _stored_bytes(entry, entry.shape.weights - entry.shape.looked_up, entry.shape.experts)
    return in_memory + cache + states + PROGRAM_BYTES


def tokens_per_second(entry: CatalogEntry, bandwidth: Callable[[int], float]) -> float:
    """Return the decode rate at the beginning of a conversation.

    `bandwidth` is that of so many bytes, in GB/s, as `memory_bandwidth` measures it: a cache may hold a small model.
    """
    shape = entry.shape
    weights = _stored_bytes(entry, shape.weights_per_token, shape.used_experts)
    # A state is read and written.
    read = weights + 2 * _BYTES_PER_STATE_NUMBER * shape.state_numbers
    speed = bandwidth(min(weights, _BUFFER_BYTES))
    return 1 / (read / (_SHARE_OF_BANDWIDTH * speed * 1e9) + shape.parts * _SECONDS_PER_PART)


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
