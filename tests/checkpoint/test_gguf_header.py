"""Headers of GGUF files made by hand: within limits of memory and time, and nothing in them twice."""

import struct
import tracemalloc

import numpy as np
import pytest
from fuzzing.gguf_headers import ARRAY, STRING, Header, array, text
from fuzzing.readers import gguf_file

from tinychat.checkpoint.gguf_header import MAX_HEADER_BYTES, MAX_STRINGS, MAX_TEXT_BYTES, read_beginning, read_header
from tinychat.errors import CheckpointError

U8 = 0
READERS = pytest.mark.parametrize("read", [read_header, read_beginning])


@pytest.fixture
def header():
    return Header(gguf_file("gpt2"))


def write(path, header):
    path.write_bytes(header.file())
    return path


def with_zeros(path, kind, count, size):
    """Write a header whose one field is an array of zeros; they take no room on the disk."""
    field = text(b"general.zeros") + struct.pack("<IIQ", ARRAY, kind, count)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + size)
    return path


def peak_bytes(read, path):
    tracemalloc.start()
    found = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return found, peak


def test_arrays_of_numbers_are_views_of_the_file(tmp_path):
    path = with_zeros(tmp_path / "numbers.gguf", U8, 200_000_000, 200_000_000)
    (metadata, _), peak = peak_bytes(read_header, path)
    assert metadata["general.zeros"].shape == (200_000_000,)
    assert peak < 1 << 20


@pytest.mark.parametrize(("letter", "kind"), [("B", 0), ("b", 1), ("h", 3), ("i", 5), ("f", 6), ("?", 7), ("Q", 10)])
def test_numbers_are_those_of_the_file(letter, kind, header, tmp_path):
    expected = [1, 0, 1, 1]
    # A field before it of odd length: no number lies at a multiple of its size.
    header.set("general.a", (STRING, text(b"abc")))
    header.set("general.numbers", array(kind, struct.pack(f"<4{letter}", *expected), 4))
    metadata, _ = read_header(write(tmp_path / "x.gguf", header))
    assert metadata["general.numbers"].dtype == np.dtype(letter)
    assert metadata["general.numbers"].tolist() == expected
    assert read_beginning(tmp_path / "x.gguf")["general.architecture"] == "llama"


@READERS
@pytest.mark.parametrize(
    ("kind", "count", "size", "reason"),
    [
        (U8, MAX_HEADER_BYTES, MAX_HEADER_BYTES, "more than 256 MB"),
        (STRING, 30_000_000, 240_000_000, f"more than {MAX_STRINGS} texts"),
        (U8, 1 << 62, 99, "counts more than it holds"),
        (STRING, 1 << 62, 99, "counts more than it holds"),
    ],
)
def test_what_exceeds_a_limit_is_refused_at_once(read, kind, count, size, reason, tmp_path):
    path = with_zeros(tmp_path / "large.gguf", kind, count, size)

    def refused(path):
        with pytest.raises(CheckpointError, match=reason) as raised:
            read(path)
        assert str(raised.value).startswith(f"{path} ")

    assert peak_bytes(refused, path)[1] < 1 << 20


@READERS
def test_texts_are_limited_together(read, header, tmp_path):
    half = text(b"a" * (MAX_TEXT_BYTES // 2))
    header.fields.insert(0, (b"general.one", STRING, half))
    read(write(tmp_path / "x.gguf", header))
    for second in ((STRING, half), array(STRING, half, 1)):
        header.fields[1:1] = [(b"general.other", *second)]
        with pytest.raises(CheckpointError, match="more than 32 MB of text"):
            read(write(tmp_path / "x.gguf", header))
        del header.fields[1]


def test_the_beginning_has_no_lists(header, tmp_path):
    many = b"".join(text(b"x" * 10) for _ in range(100_000))
    header.fields.insert(0, (b"general.many", *array(STRING, many, 100_000)))
    metadata, peak = peak_bytes(read_beginning, write(tmp_path / "x.gguf", header))
    assert (metadata["general.many"], metadata["general.architecture"]) == (None, "llama")
    assert peak < 1 << 20


@READERS
def test_a_key_that_occurs_twice_is_refused(read, header, tmp_path):
    header.fields.append((b"llama.block_count", 4, struct.pack("<I", 2)))
    header.fields.sort(key=lambda field: field[0].startswith(b"tokenizer."))
    with pytest.raises(CheckpointError, match=r"x\.gguf has the key 'llama\.block_count' twice: .* download it again"):
        read(write(tmp_path / "x.gguf", header))


def test_two_tensors_of_one_name_are_refused(header, tmp_path):
    header.tensors.append(header.tensors[0])
    with pytest.raises(CheckpointError, match=r"x\.gguf has two tensors 'blk\.0\.attn_q\.weight': .* download it agai"):
        read_header(write(tmp_path / "x.gguf", header))


def test_a_tensor_without_weights_is_refused(header, tmp_path):
    header.tensors[0].sizes = [0, 32]
    with pytest.raises(CheckpointError, match="a shape that it cannot have"):
        read_header(write(tmp_path / "x.gguf", header))


@READERS
def test_arrays_of_arrays_are_refused(read, header, tmp_path):
    header.fields.insert(0, (b"general.deep", *array(ARRAY, array(4, bytes(4), 1)[1], 1)))
    with pytest.raises(CheckpointError, match="a value of unknown type 9"):
        read(write(tmp_path / "x.gguf", header))
