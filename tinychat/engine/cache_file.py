"""A file of a sequence's keys and values, so that a later process need not compute them again.

    "tinychat keys and values" and a newline, length and CRC-32 of the header (uint32, little-endian), header, blocks

The header is a JSON object: `of`, the fingerprint of model and program, `kv`, `angles` (`models.rope.angle_set`), the
shape of a block, `ids`, and the CRC-32 of each block. A block is its keys, values and scales as they are in memory.
`positions` are those of the snapshots of states, which follow the blocks, and `states` their CRC-32. A file with
anything else, or damaged, counts as none.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from tinychat.engine.blocks import BlockPool, blocks_for
from tinychat.engine.cache import KVCache
from tinychat.engine.states import State, state_bytes
from tinychat.errors import CacheFullError, SessionError
from tinychat.files import open_regular, replacing
from tinychat.held_signals import held_signals
from tinychat.models.rope import angle_set

_MAGIC = b"tinychat keys and values\n"
# More than two million tokens, and little enough to be read at once whatever it says.
_LONGEST_HEADER = 16 << 20
# Lists and objects of a header; millions of empty ones would take seconds to parse.
_MOST_NESTED = 16


class _Header(NamedTuple):
    """The header of the keys and values that follow it."""

    angles: int
    ids: list[int]
    checksums: list[int]  # of the blocks
    positions: list[int]  # of the snapshots
    states: list[int]  # checksums of these


def write_cache(path: Path, cache: KVCache, of: str) -> bool:
    """Write the positions of a cache that are `KVCache.lasting`, up to an image; return whether there are any.

    of : fingerprint of the model and program. SessionError if the file cannot be written; it is then as it was before.
    """
    with cache.pool.lock:
        cache.insert_snapshot()
        # Image ids mean nothing to another process.
        until = next((i for i, token_id in enumerate(cache.ids) if token_id >= cache.config.vocab_size), cache.length)
        length, angles = min(cache.lasting, until), angle_set(cache.config, cache.angles_of)
        snapshots = [(position, state) for position, state in cache.snapshots if position <= length]
        if not length or angles is None:
            return False
        blocks = [_parts(cache.pool, block) for block in cache.table[: blocks_for(length)]]
        # Another sequence may go on in the last one while the file is written.
        blocks[-1] = [memoryview(bytes(part)) for part in blocks[-1]]
    header: dict[str, Any] = _description(cache.pool, of) | {
        "angles": angles,
        "ids": cache.ids[:length],
        "blocks": [_checksum(parts) for parts in blocks],
        "positions": [position for position, _ in snapshots],
        "states": [zlib.crc32(_memory_of(state)) for _, state in snapshots],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    try:
        with replacing(path) as file:
            file.write(_MAGIC + _number(len(text)) + _number(zlib.crc32(text)) + text)
            # At once as large as it becomes: other programs see what it takes.
            parts = [*chain.from_iterable(blocks), *(_memory_of(state) for _, state in snapshots)]
            file.truncate(file.tell() + sum(part.nbytes for part in parts))
            file.writelines(parts)
    except OSError as error:
        raise SessionError(
            f"{path} cannot be written ({error.strerror or error}): free some space, or give another path"
        ) from None
    return True


def read_cache(path: Path, pool: BlockPool, of: str) -> int:
    """Insert the prefix of a file into a pool; return its length.

    0 if the file is missing or damaged, has another fingerprint `of`, or does not fit.
    """
    try:
        with open_regular(path) as file:
            return _read(cast(BufferedIOBase, file), pool, of)
    except (OSError, CacheFullError):
        return 0


def _read(file: BufferedIOBase, pool: BlockPool, of: str) -> int:
    header = _header(file, pool, of)
    if header is None:
        return 0
    with held_signals(always=True) as let_signals_act, pool.lock:
        table = pool.take(len(header.checksums))
        try:
            for block, checksum in zip(table, header.checksums):
                let_signals_act()
                parts = _parts(pool, block)
                if any(file.readinto(part) != part.nbytes for part in parts) or _checksum(parts) != checksum:
                    return 0
            for position, checksum in zip(header.positions, header.states):
                let_signals_act()
                state = State(state_bytes(pool.config) // 4)
                memory = _memory_of(state)
                if file.readinto(memory) != memory.nbytes or zlib.crc32(memory) != checksum:
                    return 0
                pool.snapshots.put(table, position, state)
            pool.insert_prefix(header.angles, header.ids, table)
        finally:
            pool.release(table)
    return len(header.ids)


def _header(file: BufferedIOBase, pool: BlockPool, of: str) -> _Header | None:
    """Return the header; None if it is damaged, or does not match the pool."""
    start = file.read(len(_MAGIC) + 8)
    magic, length, checksum = start[:-8], start[-8:-4], start[-4:]
    count = int.from_bytes(length, "little")
    if magic != _MAGIC or count > _LONGEST_HEADER:
        return None
    text = file.read(count)
    if (
        len(text) != count
        or _number(zlib.crc32(text)) != checksum
        or text.count(b"[") + text.count(b"{") > _MOST_NESTED
    ):
        return None
    # Anybody can compute this checksum, so nothing is taken for granted of what follows.
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    wanted = _description(pool, of)
    if not isinstance(value, dict) or {name: value.get(name) for name in wanted} != wanted:
        return None
    header = _Header(*(value.get(name) for name in ("angles", "ids", "blocks", "positions", "states")))  # type: ignore[arg-type]
    has_states = state_bytes(pool.config) > 0
    is_sound = (
        type(header.angles) is int
        and _are_integers(header.ids, pool.config.vocab_size)
        and _are_integers(header.checksums, 1 << 32)
        and len(header.checksums) == blocks_for(len(header.ids)) > 0
        and _are_integers(header.positions, len(header.ids) + 1)
        and _are_integers(header.states, 1 << 32)
        and len(header.positions) == len(header.states) <= len(header.ids) * has_states
        and 0 not in header.positions
    )
    return header if is_sound else None


def _are_integers(values: object, end: int) -> bool:
    """Return whether this is a list of integers from 0 to `end`, exclusive; JSON has true and 1.0, too."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < end for value in values)


def _description(pool: BlockPool, of: str) -> dict[str, Any]:
    """Return the part of the header that must match the pool's."""
    shapes = [[str(array.dtype), *array.shape[1:]] for array in pool.arrays]
    return {"of": of, "kv": pool.kv, "order": sys.byteorder, "shapes": shapes, "state": state_bytes(pool.config)}


def _parts(pool: BlockPool, block: int) -> list[memoryview]:
    """Return the memory of a block."""
    return [memoryview(array[block].reshape(-1).view("u1")) for array in pool.arrays]


def _memory_of(state: State) -> memoryview:
    return memoryview(state.numbers.view("u1").data)


def _checksum(parts: Iterable[memoryview]) -> int:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")
