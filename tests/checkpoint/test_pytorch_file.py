import os
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinychat.checkpoint.pytorch_file import PytorchFile
from tinychat.errors import CheckpointError

VALUES = np.arange(-6, 6, dtype=np.float32).reshape(4, 3) / 8


def name_global(module, name):
    return f"c{module}\n{name}\n".encode()


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def integer(value):
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def make_tuple(*items):
    return b"(" + b"".join(items) + b"t"


def call(function, *arguments):
    return function + make_tuple(*arguments) + b"R"


def storage(key="0", kind="FloatStorage", size=12):
    return make_tuple(text("storage"), name_global("torch", kind), text(key), text("cpu"), integer(size)) + b"Q"


def tensor(block=None, offset=0, shape=(4, 3), stride=(3, 1)):
    no_hooks = name_global("collections", "OrderedDict") + b")R"
    return call(
        name_global("torch._utils", "_rebuild_tensor_v2"),
        block or storage(),
        integer(offset),
        make_tuple(*map(integer, shape)),
        make_tuple(*map(integer, stride)),
        b"\x89",
        no_hooks,
    )


def state_dict(**values):
    items = b"".join(text(name) + value for name, value in values.items())
    return b"\x80\x02" + name_global("collections", "OrderedDict") + b")R(" + items + b"u."


FLOATS = {"archive/data/0": VALUES.tobytes()}


@pytest.fixture
def open_archive(tmp_path):
    def write_and_open(program, entries=None, compression=zipfile.ZIP_STORED):
        path = tmp_path / "pytorch_model.bin"
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("archive/data.pkl", program)
            for name, content in (FLOATS if entries is None else entries).items():
                archive.writestr(name, content)
        return PytorchFile(path)

    return write_and_open


def test_rows_of_every_dtype(open_archive):
    file = open_archive(
        state_dict(
            single=tensor(),
            half=tensor(storage("1", "HalfStorage")),
            brain=tensor(storage("2", "BFloat16Storage")),
        ),
        {
            **FLOATS,
            "archive/data/1": VALUES.astype(np.float16).tobytes(),
            "archive/data/2": VALUES.astype(ml_dtypes.bfloat16).tobytes(),
            "archive/byteorder": b"little",
        },
    )
    for name, dtype in [("single", np.float32), ("half", np.float16), ("brain", ml_dtypes.bfloat16)]:
        rows = file.read(name, 1, 3)
        assert rows.dtype == dtype
        assert rows.flags.c_contiguous and rows.flags.aligned and rows.flags.writeable
        np.testing.assert_array_equal(rows.astype(np.float32), VALUES[1:3])


@pytest.mark.parametrize(("kind", "dtype"), [("LongStorage", "<i8"), ("IntStorage", "<i4"), ("ByteStorage", "u1")])
def test_whole_numbers(open_archive, kind, dtype):
    numbers = np.arange(12, dtype=dtype).reshape(4, 3)
    values = {
        "whole": tensor(storage("1", kind)),
        "single": tensor(),
        "turned": tensor(storage("1", kind), 0, (3, 4), (1, 3)),
    }
    file = open_archive(state_dict(**values), {**FLOATS, "archive/data/1": numbers.tobytes()})
    np.testing.assert_array_equal(file.read_integers("whole"), numbers)
    np.testing.assert_array_equal(file.read_integers("turned"), numbers.T)
    with pytest.raises(CheckpointError, match=r"tensor .whole. is u?int\d+; only float32"):
        file.read("whole", 0, 4)
    with pytest.raises(
        CheckpointError, match="tensor 'single' is float32; only uint8, int32, uint32, int64 can be read"
    ):
        file.read_integers("single")


def test_windows_of_a_storage(open_archive):
    file = open_archive(
        state_dict(
            transposed=tensor(shape=(3, 4), stride=(1, 3)),
            tail=tensor(offset=6, shape=(2, 3)),
            column=tensor(offset=2, shape=(4,), stride=(3,)),
            scalar=tensor(offset=11, shape=(), stride=()),
            nothing=tensor(shape=(0, 3)),
        )
    )
    np.testing.assert_array_equal(file.read("transposed", 0, 3), VALUES.T)
    np.testing.assert_array_equal(file.read("transposed", 1, 2), VALUES.T[1:2])
    np.testing.assert_array_equal(file.read("tail", 0, 2), VALUES[2:])
    np.testing.assert_array_equal(file.read("column", 1, 4), VALUES[1:, 2])
    assert file.read("scalar", 0, 1) == VALUES[-1, -1]
    assert file.read("nothing", 0, 0).shape == (0, 3)
    assert file.read("transposed", 0, 3).flags.c_contiguous


@pytest.mark.parametrize("stride", [(1, 1 << 61), (1, (1 << 62) - 1)])
def test_the_stride_of_a_single_column_means_nothing(open_archive, stride):
    file = open_archive(state_dict(w=tensor(offset=2, shape=(4, 1), stride=stride)), FLOATS)
    np.testing.assert_array_equal(file.read("w", 0, 4), VALUES.reshape(-1, 1)[2:6])


def test_values_that_are_no_tensors_are_left_out(open_archive):
    assert open_archive(state_dict(w=tensor(), step=integer(3))).names() == {"w"}


class Malice:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (os.mkdir, (self.marker,))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_malicious_pickle_runs_nothing(open_archive, tmp_path, protocol):
    live = tmp_path / "live"
    pickle.loads(pickle.dumps({"w": Malice(live)}, protocol))
    assert live.exists(), "the payload must work where it is let loose"

    marker = tmp_path / "marker"
    with pytest.raises(CheckpointError, match=r"asks for \w+\.mkdir, which is not a tensor"):
        open_archive(pickle.dumps({"w": Malice(marker)}, protocol))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("torch", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch", "Float\\oStorage"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("collections", "OrderedDict.fromkeys"),
        ("\x1b[31m", "x"),
    ],
)
def test_unknown_globals_are_refused_by_name(open_archive, module, name):
    with pytest.raises(CheckpointError, match="which is not a tensor") as caught:
        open_archive(state_dict(w=call(name_global(module, name), text("x"))))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (b"", "damaged"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02N.", "no dictionary"),
        (b"\x80\x02}.", "no tensors"),
        (state_dict(w=tensor())[:-1], "damaged"),
        (state_dict(w=tensor())[:-20], "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"\x80\x02(.", "no dictionary"),
        (b"\x80\x02t.", "damaged"),
        (b"\x80\x02R.", "damaged"),
        (b"\x80\x02}K\x01K\x02s.", "a key is not a string"),
        (b"\x80\x02" + text("x") + b"K\x01K\x02s.", "not a dictionary"),
        (b"\x80\x02]q\x00.", "EMPTY_LIST has no place"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".", "no dictionary"),
        (b"\x80\x02N" + b"\x85" * 100_000 + b".", "no dictionary"),
        (b"\x80\x02N" + b"q\x00h\x00\x86" * 60 + b".", "no dictionary"),
        (state_dict(w=b"N" + b"q\x00h\x00\x86" * 60, v=tensor())[:-1] + b"}" + b"K\x01s.", "damaged"),
        (b"\x80\x02" + b"N" * (5 << 20) + b".", "larger than 4 MiB"),
        (state_dict(w=tensor(b"K\x01")), "unknown way"),
        (state_dict(w=tensor(storage(kind="../x"))), "not a tensor"),
        (state_dict(w=tensor(storage(size=-1))), "no size"),
        (state_dict(w=tensor(shape=(4, 3), stride=(3,))), "sizes are not valid"),
        (state_dict(w=tensor(shape=(-4, 3))), "sizes are not valid"),
        (state_dict(w=tensor(offset=-1)), "sizes are not valid"),
        (state_dict(w=tensor(shape=(1,) * 9, stride=(1,) * 9)), "sizes are not valid"),
        (state_dict(w=tensor(shape=(5, 3))), "'w' is larger than its storage"),
        (state_dict(w=tensor(offset=1)), "'w' is larger than its storage"),
        (state_dict(w=tensor(shape=(1 << 40, 3), stride=(0, 1))), "'w' is larger than its storage"),
        (state_dict(w=tensor(shape=(1 << 60, 1 << 60), stride=(0, 0))), "'w' is larger than its storage"),
    ],
)
def test_damaged_and_lying_pickles(open_archive, program, reason):
    with pytest.raises(CheckpointError, match=reason) as caught:
        open_archive(program)
    assert "pytorch_model.bin" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("block", "entries", "reason"),
    [
        (storage(), {}, "'w' has no data in the file"),
        (storage("../../../etc/passwd"), FLOATS, "'w' has no data in the file"),
        (storage(), {"archive/data/0": VALUES.tobytes()[:-1]}, "'w' needs more data than the 47 bytes"),
        (storage(kind="DoubleStorage"), {"archive/data/0": bytes(96)}, "'w' is float64; only float32"),
        (storage(kind="LongStorage"), {"archive/data/0": bytes(96)}, "'w' is int64; only float32"),
    ],
)
def test_bad_storages_name_the_tensor(open_archive, block, entries, reason):
    file = open_archive(state_dict(w=tensor(block)), entries)
    assert file.shape("w") == (4, 3)
    with pytest.raises(CheckpointError, match=reason):
        file.read("w", 0, 4)


def test_compressed_and_big_endian_archives_are_refused(open_archive):
    with pytest.raises(CheckpointError, match="compressed"):
        open_archive(state_dict(w=tensor()), compression=zipfile.ZIP_DEFLATED)
    for order in (b"big", b"little" * 1000):
        with pytest.raises(CheckpointError, match="big-endian"):
            open_archive(state_dict(w=tensor()), {**FLOATS, "archive/byteorder": order})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no PyTorch checkpoint"),
        (b"hello", "no PyTorch checkpoint"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "before PyTorch 1.6"),
        (b"PK\x03\x04" + bytes(100), "damaged"),
    ],
)
def test_other_files(tmp_path, content, reason):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason):
        PytorchFile(path)


def test_zip_without_a_pickle(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(CheckpointError, match="a zip file, but no PyTorch checkpoint"):
        PytorchFile(path)


def test_truncated_archive(open_archive):
    path = open_archive(state_dict(w=tensor())).path
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 10):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            PytorchFile(path)


def read_everything(path):
    try:
        file = PytorchFile(path)
        for name in file.names():
            shape = file.shape(name)
            file.read(name, 0, shape[0] if shape else 1)
    except CheckpointError as error:
        assert str(error).isprintable()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_archives_raise_nothing_else(open_archive, changes):
    path = open_archive(state_dict(w=tensor(), v=tensor(shape=(3, 4), stride=(1, 3)))).path
    content = bytearray(path.read_bytes())
    for position, value in changes:
        content[position % len(content)] = value
    path.write_bytes(content)
    read_everything(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_pickles_raise_nothing_else(open_archive, changes):
    program = bytearray(state_dict(w=tensor(), v=tensor(shape=(3, 4), stride=(1, 3))))
    for position, value in changes:
        program[position % len(program)] = value
    try:
        read_everything(open_archive(bytes(program)).path)
    except CheckpointError as error:
        assert str(error).isprintable()


@pytest.mark.live
@pytest.mark.parametrize("protocol", [2, 4])
def test_equals_what_torch_wrote(tmp_path, protocol):
    torch = pytest.importorskip("torch")
    source = torch.tensor(VALUES)
    module = torch.nn.Linear(3, 4)
    tensors = {
        **module.state_dict(),
        "brain": source.bfloat16(),
        "half": source.half(),
        "transposed": source.t(),
        "part": source[1:3],
        "parameter": torch.nn.Parameter(source),
        "scalar": torch.tensor(2.0),
    }
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors, path, pickle_protocol=protocol)
    file = PytorchFile(path)
    assert file.names() == tensors.keys()
    for name, tensor_ in tensors.items():
        expected = tensor_.detach().float().numpy()
        rows = file.read(name, 0, expected.shape[0] if expected.shape else 1)
        np.testing.assert_array_equal(rows.astype(np.float32), expected)


@pytest.mark.live
def test_state_dict_with_metadata_and_the_old_format(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "pytorch_model.bin"
    module = torch.nn.Linear(3, 4)
    torch.save(module.state_dict(), path)
    assert PytorchFile(path).names() == {"weight", "bias"}
    torch.save(module.state_dict(), path, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"before PyTorch 1\.6"):
        PytorchFile(path)
