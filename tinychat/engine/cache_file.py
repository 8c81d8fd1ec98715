"""A file of a sequence's keys and values, so that a later process need not compute them again.

    "tinychat keys and values" and a newline, length and CRC-32 of the header (uint32, little-endian), header, blocks

The header is a JSON object: `of` says what computed them, `kv`, `angles` (see `models.rope.angle_set`), the shape of a
block, `ids`, and the CRC-32 of each block. A block is its keys, values and scales as they are in memory. A file that
is of anything else, or damaged, is as good as none: what it would have held is computed.
"""

from __future__ import annotations

import json
import sys
import zlib
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from tinychat.engine.blocks import BlockPool, blocks_for
from tinychat.engine.cache import KVCache
from tinychat.errors import CacheFullError
from tinychat.files import open_regular, replacing
from tinychat.models.rope import angle_set

_MAGIC = b"tinychat keys and values\n"
_LONGEST_HEADER = 64 << 20


def write_cache(path: Path, cache: KVCache, of: str) -> bool:
    """Write what later sequences may use of a cache; return whether there was anything.

    Parameters
    ----------
    path : Path
        Replaced in one step.
    cache : KVCache
    of : str
        What model and program computed it.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    length, angles = cache.lasting, angle_set(cache.config, cache.angles_of)
    if not length or angles is None:
        return False
    table = cache.table[: blocks_for(length)]
    header: dict[str, Any] = _description(cache.pool, of) | {
        "angles": angles,
        "ids": cache.ids[:length],
        "blocks": [_checksum(cache.pool, block) for block in table],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    with replacing(path) as file:
        file.write(_MAGIC + _number(len(text)) + _number(zlib.crc32(text)) + text)
        for block in table:
            file.writelines(_parts(cache.pool, block))
    return True


def read_cache(path: Path, pool: BlockPool, of: str) -> int:
    """Let sequences of a pool use what a file holds; return how many tokens that are, 0 if it does not fit.

    Parameters
    ----------
    path : Path
        May be missing.
    pool : BlockPool
    of : str
        As given to `write_cache`.
    """
    try:
        with open_regular(path) as file:
            return _read(cast(BufferedIOBase, file), pool, of)
    except (OSError, CacheFullError):
        return 0


def _read(file: BufferedIOBase, pool: BlockPool, of: str) -> int:
    header = _header(file)
    wanted = _description(pool, of)
    if {name: header.get(name) for name in wanted} != wanted:
        return 0
    ids, angles, checksums = header["ids"], header["angles"], header["blocks"]
    if not ids or len(checksums) != blocks_for(len(ids)):
        return 0
    with pool.lock:
        table = pool.take(len(checksums))
        try:
            for block, checksum in zip(table, checksums):
                if any(file.readinto(part) != part.nbytes for part in _parts(pool, block)):
                    return 0
                if _checksum(pool, block) != checksum:
                    return 0
            pool.remember(angles, ids, table)
        finally:
            pool.release(table)
    return len(ids)


def _header(file: BufferedIOBase) -> dict[str, Any]:
    """Return the header; without any names if it is damaged."""
    start = file.read(len(_MAGIC) + 8)
    magic, length, checksum = start[:-8], start[-8:-4], start[-4:]
    count = int.from_bytes(length, "little")
    if magic != _MAGIC or count > _LONGEST_HEADER:
        return {}
    text = file.read(count)
    # What has this checksum was written by `write_cache`.
    return dict(json.loads(text)) if len(text) == count and _number(zlib.crc32(text)) == checksum else {}


def _description(pool: BlockPool, of: str) -> dict[str, Any]:
    """Return what must agree before a block of a file can be one of a pool."""
    shapes = [[str(buffer.dtype), *buffer.shape[1:]] for buffer in pool.buffers]
    return {"of": of, "kv": pool.kv, "order": sys.byteorder, "shapes": shapes}


def _parts(pool: BlockPool, block: int) -> list[memoryview]:
    """Return the memory of a block."""
    return [memoryview(buffer[block].reshape(-1).view("u1")) for buffer in pool.buffers]


def _checksum(pool: BlockPool, block: int) -> int:
    checksum = 0
    for part in _parts(pool, block):
        checksum = zlib.crc32(part, checksum)
    return checksum


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")
