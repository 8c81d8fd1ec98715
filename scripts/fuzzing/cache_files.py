"""Files of keys and values: a sound one, headers that no program wrote, and a function that reads one as a chat would.

A header has a checksum, so that bytes changed anywhere are refused for that alone: what is changed here gets its own.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from tinychat.engine.blocks import BlockPool
from tinychat.engine.cache import KVCache
from tinychat.engine.cache_file import read_cache, write_cache
from tinychat.errors import SessionError
from tinychat.models.architectures import parse_config
from tinychat.models.shapes import config_of

NAME, _OF, _LENGTH = "kept.cache", "what computed it", 100
_SHAPE = {"hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
# What stands in a header as lengths, and is another one.
_LENGTHS = (0, 1, 2**16, 2**24, 2**31, 2**32 - 1)
_TEXTS = (
    b"", b"null", b"0", b"[]", b'""', b"NaN", b"\xff\xfe", b"{", b"[" * 200_000, b'{"of":' * 100_000, b"9" * 10_000,
    b'{"ids": [' + b"[]," * 2_000_000 + b"0]}", b'{"ids": ' + b"9" * 5000 + b"}", b'{"blocks": {"0": 1, "1": 2}}',
)  # fmt: skip
# By what stands for a field in a header of which the rest is sound.
_VALUES = (
    b"null", b"true", b"0", b"-1", b"1.0", b"1e400", b"NaN", b'"x"', b"[]", b"{}", b"[[]]", b"[null]", b"[-1]",
    b"[true]", b"[0.5]", b"[1e999]", b'["0"]', b"[" + b"0," * 99 + b"-1]", b"[" + b"0," * 99 + b"4000000000]",
    b"[1, 2]", b"[" + b"1," * 300_000 + b"1]", b"9" * 400, b'{"a": {"a": {}}}', b"[" * 5000 + b"]" * 5000,
    b"18446744073709551616",
)  # fmt: skip
_FIELDS = (b"of", b"kv", b"order", b"shapes", b"angles", b"ids", b"blocks")


def _pool() -> BlockPool:
    pool = BlockPool(parse_config(config_of("smollm2-135m") | _SHAPE, "config.json"), "f32", 1 << 20)
    pool.reserve(4 * _LENGTH)
    return pool


@cache
def cache_file() -> bytes:
    """Return a sound file, of two blocks."""
    pool = _pool()
    kept = KVCache(pool, 2 * _LENGTH)
    kept.make_room(_LENGTH)
    for buffer in pool.buffers:
        buffer[:] = 1
    kept.append([*range(_LENGTH)])
    with tempfile.TemporaryDirectory() as folder:
        write_cache(Path(folder) / NAME, kept, _OF)
        return (Path(folder) / NAME).read_bytes()


def read_cache_file(folder: Path) -> None:
    """Read the file of a folder; one that holds nothing is as good as none, which is called refused here."""
    pool = _pool()
    if not read_cache(folder / NAME, pool, _OF):
        assert pool.used == 0, "blocks are lost"
        raise SessionError("it holds nothing")
    assert pool.match_prefix(0, [*range(_LENGTH)])[1] <= _LENGTH


def mutated_cache_file(data: bytes, mutated_json: Callable[[bytes], bytes], draw: Random) -> bytes:
    """Return the file with another header, whose checksum agrees; `mutated_json` changes a JSON text."""
    magic = data[: data.index(b"\n") + 1]
    start = len(magic) + 8
    end = start + int.from_bytes(data[len(magic) : len(magic) + 4], "little")
    text, rest = data[start:end], data[end:]
    match draw.randrange(4):
        case 0:
            text = draw.choice(_TEXTS)
        case 1:
            field = b'"%b":' % draw.choice(_FIELDS)
            begin, _, after = text.partition(field)
            # Of two fields of one name, the last counts.
            text = begin + field + after[:-1] + b"," + field + draw.choice(_VALUES) + b"}"
        case _:
            text = mutated_json(text)
    length = len(text) if draw.random() < 0.9 else draw.choice(_LENGTHS)
    return magic + struct.pack("<II", length, zlib.crc32(text)) + text + rest
