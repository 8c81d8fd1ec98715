"""Headers of GGUF files made by hand: values of every kind in every field, absurd counts, and what occurs twice."""

from __future__ import annotations

import struct
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from random import Random

STRING, ARRAY = 8, 9
# By their numbers in the file.
LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# The package `gguf` counts types up to here; some numbers below are of none.
TENSOR_TYPES = range(48)
HUGE = (1 << 20, 1 << 28, 1 << 32, 1 << 62, (1 << 64) - 1)


def text(value: bytes) -> bytes:
    """Return a string as a file has it."""
    return struct.pack("<Q", len(value)) + value


def scalar(kind: int, number: float) -> tuple[int, bytes]:
    """Return a number's kind, and its bytes."""
    return kind, struct.pack(f"<{LETTERS[kind]}", number)


def array(kind: int, content: bytes, count: int) -> tuple[int, bytes]:
    """Return an array's kind, and its bytes; `count` is what it says of its own length."""
    return ARRAY, struct.pack("<IQ", kind, count) + content


def values() -> dict[str, tuple[int, bytes]]:
    """Return values of every kind: the number of each, and its bytes."""
    found = {f"{number} as {LETTERS[kind]}": scalar(kind, number) for kind in LETTERS for number in (0, 1)}
    found |= {f"{number} as d": scalar(12, number) for number in (-1.5, 1e-320, 1e308, float("nan"), float("inf"))}
    found |= {f"{number} as f": scalar(6, number) for number in (-0.5, 1e-40, 1e38, float("nan"))}
    found |= {"-1 as i": scalar(5, -1), "largest Q": scalar(10, (1 << 64) - 1), "lowest q": scalar(11, -(1 << 63))}
    texts = {"no text": b"", "text": b"many", "no UTF-8": b"\xff\xfe", "controls": "\x1b[2J\u202e\n".encode()}
    found |= {name: (STRING, text(value)) for name, value in texts.items()}
    for kind, letter in LETTERS.items():
        found[f"no {letter}"] = array(kind, b"", 0)
        for count in (1, 3):
            content = b"".join(struct.pack(f"<{letter}", i % 2) for i in range(count))
            found[f"{count} of {letter}"] = array(kind, content, count)
    found["many of B"] = array(0, bytes(100_000), 100_000)
    found["many of f"] = array(6, struct.pack("<f", float("nan")) * 100_000, 100_000)
    found |= {
        f"texts {number}": array(STRING, b"".join(map(text, each)), len(each))
        for number, each in enumerate([[], [b"a"], [b"a", b"\xff"], [b"a\tb c", b"a b"], [b"a b"] * 1000, [b""] * 6])
    }
    found["array of arrays"] = array(ARRAY, struct.pack("<IQ", 4, 1) + bytes(4), 1)
    found["unknown kind"] = (13, bytes(8))
    found["array of unknown kind"] = array(99, bytes(8), 1)
    return found


@dataclass
class Tensor:
    """An entry of a tensor: its name, its sizes with the fastest axis first, its type, and where its data begin."""

    name: bytes
    sizes: list[int]
    type: int
    offset: int


class Header:
    """A file taken apart: fields by their keys, each a kind and bytes; tensors, and their data.

    Parameters
    ----------
    data : bytes
        A sound file, aligned to 32 bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 4
        self.version, tensors, entries = self._numbers("IQQ")
        self.fields = [(self._text(), *self._value()) for _ in range(entries)]
        self.tensors = [self._tensor() for _ in range(tensors)]
        self.data = data[-(-self._position // 32) * 32 :]
        self.counts: tuple[int, int] | None = None

    def set(self, key: str, value: tuple[int, bytes]) -> None:
        """Give a field a value; it may be new."""
        self.fields = [field for field in self.fields if field[0] != key.encode()]
        self.fields.append((key.encode(), *value))

    def file(self) -> bytes:
        """Return the file."""
        counts = self.counts or (len(self.tensors), len(self.fields))
        header = b"GGUF" + struct.pack("<IQQ", self.version, *counts)
        header += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in self.fields)
        for tensor in self.tensors:
            sizes = struct.pack(f"<{len(tensor.sizes)}Q", *tensor.sizes)
            header += text(tensor.name) + struct.pack("<I", len(tensor.sizes)) + sizes
            header += struct.pack("<IQ", tensor.type, tensor.offset)
        return header + bytes(-len(header) % 32) + self.data

    def _numbers(self, letters: str) -> tuple[int, ...]:
        found = struct.unpack_from(f"<{letters}", self._data, self._position)
        self._position += struct.calcsize(f"<{letters}")
        return found

    def _text(self) -> bytes:
        (size,) = self._numbers("Q")
        self._position += size
        return self._data[self._position - size : self._position]

    def _value(self) -> tuple[int, bytes]:
        (kind,) = self._numbers("I")
        begin = self._position
        inner, count = self._numbers("IQ") if kind == ARRAY else (kind, 1)
        for _ in range(count):
            self._text() if inner == STRING else self._numbers(LETTERS[inner])
        return kind, self._data[begin : self._position]

    def _tensor(self) -> Tensor:
        name, (axes,) = self._text(), self._numbers("I")
        return Tensor(name, [*self._numbers("Q" * axes)], *self._numbers("IQ"))


# Fields of no sound file here that the readers look at.
_OTHER_FIELDS = (
    "general.alignment", "general.sampling.temp", "general.sampling.top_k", "split.count", "llama.expert_count",
    "llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.dimension_count",
    "llama.rope.freq_base", "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.attention.sliding_window",
    "llama.rope.scaling.original_context_length", "tokenizer.ggml.pre", "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.precompiled_charsmap", "tokenizer.ggml.eot_token_id",
)  # fmt: skip
_TENSOR_NAMES = (b"rope_freqs.weight", b"output.weight", b"blk.0.attn_q.bias", b"\xff", b"")


def _field(header: Header, draw: Random) -> None:
    keys = [*(key.decode() for key, _, _ in header.fields), *_OTHER_FIELDS]
    header.set(draw.choice(keys), draw.choice([*values().values()]))


def _twice(header: Header, draw: Random) -> None:
    several: list[object] = draw.choice([header.fields, header.tensors])  # type: ignore[list-item]
    several.append(deepcopy(draw.choice(several)))


def _length(header: Header, draw: Random) -> None:
    """Let a string or an array say another length than it has."""
    number = draw.randrange(len(header.fields))
    key, kind, value = header.fields[number]
    place = {STRING: 0, ARRAY: 4}.get(kind)
    if place is not None:
        size = struct.pack("<Q", draw.choice([*HUGE, draw.randrange(99)]))
        header.fields[number] = key, kind, value[:place] + size + value[place + 8 :]


def _long(header: Header, draw: Random) -> None:
    """Add a field of many values, which are there."""
    count = draw.choice([70_000, 1_000_000, 1_100_000, 3_000_000])
    kind = draw.choice([STRING, STRING, 0, 12, 7])
    size = 8 if kind == STRING else struct.calcsize(f"<{LETTERS[kind]}")
    keys = ["general.many", "tokenizer.ggml.tokens", "tokenizer.ggml.merges", "llama.block_count"]
    header.set(draw.choice(keys), array(kind, bytes(size * count), count))


def _counts(header: Header, draw: Random) -> None:
    counts = [len(header.tensors), len(header.fields)]
    counts[draw.randrange(2)] = draw.choice([0, 1, 99, *HUGE])
    header.counts = counts[0], counts[1]


def _tensor(header: Header, draw: Random) -> None:
    tensor = draw.choice(header.tensors)
    match draw.randrange(5):
        case 0:
            tensor.type = draw.choice(TENSOR_TYPES)
        case 1:
            tensor.sizes = [draw.choice([0, 1, 32, 64, 256, *HUGE]) for _ in range(draw.randint(0, 5))]
        case 2:
            tensor.offset = draw.choice([1, 31, 64, *HUGE])
        case 3:
            tensor.name = draw.choice(_TENSOR_NAMES)
        case _:
            header.tensors.remove(tensor)


_CHANGES: tuple[Callable[[Header, Random], None], ...] = (
    _field,
    _field,
    _field,
    _twice,
    _length,
    _long,
    _counts,
    _tensor,
)


def mutated_header(data: bytes, draw: Random) -> bytes:
    """Return a file with some fields, counts or tensors changed."""
    header = Header(data)
    for change in draw.choices(_CHANGES, k=draw.choice([1, 1, 1, 2, 3])):
        if header.fields and header.tensors:
            change(header, draw)
    return header.file()
