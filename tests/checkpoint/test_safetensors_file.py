import json
import os
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinychat.checkpoint.safetensors_file import SafetensorsFile
from tinychat.errors import CheckpointError

VALUES = np.arange(-6, 6, dtype=np.float32).reshape(4, 3) / 8


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def build(header, data, pad=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) + len(pad)) + text + pad + data


def good_file(pad=b""):
    header = {
        "__metadata__": {"format": "pt"},
        "half": entry("F16", [4, 3], 0, 24),
        "brain": entry("BF16", [4, 3], 24, 48),
        "single": entry("F32", [4, 3], 48, 96),
        "scalar": entry("F32", [], 96, 100),
        "empty": entry("F32", [0, 7], 100, 100),
        "counts": entry("I64", [1], 100, 108),
    }
    data = (
        VALUES.astype(np.float16).tobytes()
        + VALUES.astype(ml_dtypes.bfloat16).tobytes()
        + VALUES.tobytes()
        + np.float32(2.5).tobytes()
        + bytes(8)
    )
    return build(header, data, pad)


@pytest.fixture
def open_bytes(tmp_path):
    def write_and_open(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return SafetensorsFile(path)

    return write_and_open


# 0 to 7 blanks: of the eight ways to align the data, seven are bad.
@pytest.mark.parametrize("blanks", range(8))
@pytest.mark.parametrize(
    ("name", "dtype"), [("half", np.float16), ("brain", ml_dtypes.bfloat16), ("single", np.float32)]
)
def test_rows_of_every_dtype_at_every_alignment(open_bytes, name, dtype, blanks):
    file = open_bytes(good_file(b" " * blanks))
    assert file.shape(name) == (4, 3)
    for start, stop in [(0, 4), (1, 3), (3, 4), (2, 2)]:
        rows = file.read(name, start, stop)
        assert rows.dtype == dtype
        assert type(rows) is np.ndarray
        assert rows.flags.c_contiguous and rows.flags.aligned and rows.flags.writeable
        np.testing.assert_array_equal(rows.astype(np.float32), VALUES[start:stop])


def test_scalar_and_empty(open_bytes):
    file = open_bytes(good_file())
    assert file.read("scalar", 0, 1) == 2.5
    assert file.read("scalar", 0, 1).shape == ()
    assert file.read("empty", 0, 0).shape == (0, 7)


def test_writing_to_rows_never_reaches_the_file(open_bytes):
    file = open_bytes(good_file())
    file.read("single", 0, 4)[:] = 99
    np.testing.assert_array_equal(file.read("single", 0, 4), VALUES)


def test_other_dtypes_are_listed_but_not_read(open_bytes):
    file = open_bytes(good_file())
    assert file.shape("counts") == (1,)
    with pytest.raises(CheckpointError, match="'counts' is I64; only F32, F16, BF16"):
        file.read("counts", 0, 1)


def test_unknown_dtype_names_the_tensor(open_bytes):
    file = open_bytes(build({"w": entry("F4", [4], 0, 2)}, b"xx"))
    with pytest.raises(CheckpointError, match="'w' is F4"):
        file.read("w", 0, 4)


def test_file_that_shrinks_after_opening(open_bytes):
    file = open_bytes(good_file())
    file.path.write_bytes(good_file()[:-60])
    with pytest.raises(CheckpointError, match="changed"):
        file.read("single", 0, 4)


# Every type of the format, and the bits of each.
DTYPES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    "F4": 4,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_behind_one_of_any_type_are_found(open_bytes, dtype):
    size = 4 * DTYPES[dtype] // 8
    header = {"b": entry("F32", [4, 3], size, size + VALUES.nbytes), "a": entry(dtype, [4], 0, size)}
    file = open_bytes(build(header, bytes(size) + VALUES.tobytes()))
    np.testing.assert_array_equal(file.read("b", 1, 4), VALUES[1:])


F32_PAIR = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 8, 16)}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "header too small"),
        (b"\x10\0\0\0\0\0\0", "header too small"),
        (b"version https://example", "header too large"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header too large"),
        (struct.pack("<Q", 3) + b"{}", "invalid header length"),
        (struct.pack("<Q", 0), "invalid JSON"),
        (build(b"[1, 2]", b""), "invalid JSON"),
        (build(b"{" * 9000, b""), "invalid JSON"),
        (build(b"[" * 100_000, b""), "invalid JSON"),
        (build(b'{"a":' * 100_000, b""), "recursion limit"),
        (build(b'{"a": 1, "a": 2}', b""), "invalid JSON"),
        (build({"a": 1}, b""), "integer `1`"),
        (build({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "missing field `dtype`"),
        (build({"a": entry("F31", [1], 0, 4)}, bytes(4)), "unknown variant `F31`"),
        (build({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "integer `-1`"),
        (build({"a": entry("F32", [True], 0, 4)}, bytes(4)), "boolean `true`"),
        (build({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "floating point"),
        (build({"a": entry("F32", "1", 0, 4)}, bytes(4)), 'string "1"'),
        (build({"a": entry("F32", [1 << 62, 4], 0, 0)}, b""), "overflow"),
        (build({"a": entry("F32", [1 << 61, 1 << 61], 0, 0)}, b""), "overflow"),
        (build({"a": entry("F32", [3], 0, 8)}, bytes(8)), "invalid shape"),
        (build({"a": entry("F32", [2], 8, 0)}, bytes(8)), "invalid offset for tensor `a`"),
        (build({"a": entry("F32", [2], -8, 0)}, bytes(8)), "integer `-8`"),
        (build({"a": {**entry("F32", [2], 0, 8), "data_offsets": [8]}}, bytes(8)), "invalid length 1"),
        (build(F32_PAIR, bytes(15)), "not fully covered"),
        (build(F32_PAIR, bytes(17)), "not fully covered"),
        (build({**F32_PAIR, "b": entry("F32", [2], 4, 12)}, bytes(12)), "invalid offset for tensor `b`"),
        (build({**F32_PAIR, "b": entry("F32", [2], 0, 8)}, bytes(8)), "invalid offset"),
        (build({**F32_PAIR, "b": entry("F32", [2], 12, 20)}, bytes(20)), "invalid offset for tensor `b`"),
        (build({"a": entry("F32", [2], 1 << 60, (1 << 60) + 8)}, bytes(8)), "invalid offset for tensor `a`"),
        (build({"\ud800\n": 1}, b""), "invalid JSON"),
        (build({"\x1b\n": entry("F32", [2], 8, 16)}, bytes(8)), r"invalid offset for tensor `\\x1b\\x0a`"),
    ],
)
def test_damaged_and_lying_files(open_bytes, content, reason):
    with pytest.raises(CheckpointError, match=f"or not safetensors: .*{reason}.*; download it again") as caught:
        open_bytes(content)
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_headers_larger_than_any_published_are_refused(open_bytes):
    with pytest.raises(CheckpointError, match="header of more than 16 MiB; refused"):
        open_bytes(build(b"{}" + b" " * (17 << 20), b""))


def test_more_dimensions_than_any_tensor_has_are_refused(open_bytes):
    with pytest.raises(CheckpointError, match="'a' has more than 8 dimensions"):
        open_bytes(build({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)))


@pytest.mark.parametrize("shape", [[0, 1 << 62], [0, 1 << 63], [0, 1 << 40, 1 << 40]], ids=str)
def test_an_empty_tensor_of_a_size_that_no_array_has(open_bytes, shape):
    file = open_bytes(build({"a": entry("F32", shape, 0, 0)}, b""))
    with pytest.raises(CheckpointError, match="cannot be mapped"):
        file.read("a", 0, 0)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        SafetensorsFile(tmp_path / "model.safetensors")


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        SafetensorsFile(tmp_path / "model.safetensors")


def read_everything(open_bytes, content):
    """Any file must either read or be refused with the one error."""
    try:
        file = open_bytes(content)
        for name in file.names():
            shape = file.shape(name)
            file.read(name, 0, shape[0] if shape else 1)
    except CheckpointError as error:
        assert str(error).isprintable()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 700),
)
def test_mutated_files_raise_nothing_else(open_bytes, changes, cut):
    content = bytearray(good_file())
    for position, value in changes:
        content[position % len(content)] = value
    read_everything(open_bytes, bytes(content[:cut]) if cut < len(content) else bytes(content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = JSON | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I64", "?"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 70), min_size=2, max_size=2) | JSON,
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=4), ENTRIES, max_size=3), size=st.integers(0, 64))
def test_invented_headers_raise_nothing_else(open_bytes, header, size):
    read_everything(open_bytes, build(header, bytes(size)))


@pytest.mark.live
def test_equals_what_torch_wrote(open_bytes, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    source = torch.tensor(VALUES)
    tensors = {"a": source.bfloat16(), "b": source.half(), "c": source}
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "theirs.safetensors")
    assert file.names() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(file.read(name, 1, 4).astype(np.float32), tensor[1:4].float().numpy())
