"""Types of one and two bits in GGUF files, against their formulas, and these and those of tables against llama.cpp."""

import json
import os
import subprocess

import gguf
import gguf_files
import numpy as np
import pytest
import reference
from conversion import test_passthrough
from fuzzing.gguf_headers import Header

from tinychat.checkpoint.gguf_file import GgufFile
from tinychat.checkpoint.gguf_tables import TABLES
from tinychat.checkpoint.gguf_types import I2_S, OLDER_Q2_0, OWN_TYPES, Q1_0, Q2_0
from tinychat.checkpoint.tensors import Tensors
from tinychat.errors import CheckpointError
from tinychat.models.passthrough import Form

LLAMA_PYTHON = os.environ.get("TINYCHAT_LLAMA_PYTHON", "")
DEQUANTIZE = """
import ctypes, glob, os, sys, llama_cpp, numpy as np
folder = os.path.join(os.path.dirname(llama_cpp.__file__), "lib")
library = ctypes.CDLL(glob.glob(os.path.join(folder, "libggml-base.so"))[0])
blocks, out = np.load(sys.argv[1]), np.zeros(int(sys.argv[3]), np.float32)
function = getattr(library, f"dequantize_row_{sys.argv[2].lower().replace('k', 'K')}")
function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
function(blocks.ctypes.data, out.ctypes.data, out.size)
np.save(sys.argv[1], out)
"""
ROWS, COLUMNS = 24, 512


def write_blocks(path, tensors):
    """Write tensors of types that the package does not write; tensors : number, shape and bytes of each by name."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, (_, _, data) in tensors.items():
        writer.add_tensor(name, data.reshape(-1).view(np.int8))
    gguf_files.write(writer)
    header = Header(path.read_bytes())
    for tensor in header.tensors:
        tensor.type, (rows, columns), _ = tensors[tensor.name.decode()]
        tensor.sizes = [columns, rows]
    path.write_bytes(header.file())
    return GgufFile(path).tensors


def draw(rng, number, rows=ROWS, columns=COLUMNS):
    """Return bytes of any codes, and what they mean, float64."""
    group = OWN_TYPES[number].columns
    scales = rng.standard_normal((rows, columns // group)).astype("<f2")
    if number == Q1_0:
        codes = rng.integers(0, 2, (rows, columns))
        values, shifts = 2 * codes - 1, range(8)
    else:
        codes = rng.integers(0, 4, (rows, columns))
        values, shifts = codes - 1, range(0, 8, 2)
    if number == I2_S:
        scale = np.float32(0.37)
        quarters = codes.reshape(-1, 4, 32)
        packed = sum(quarters[:, i] << shift for i, shift in enumerate((6, 4, 2, 0))).astype(np.uint8)
        tail = np.zeros(32, np.uint8)
        tail[:4] = scale.reshape(1).view(np.uint8)
        return np.concatenate([packed.reshape(-1), tail]), np.float64(scale) * values
    neighbours = codes.reshape(rows, columns // group, -1, len(shifts))
    packed = sum(neighbours[..., i] << shift for i, shift in enumerate(shifts)).astype(np.uint8)
    heads = scales.view(np.uint8).reshape(rows, -1, 2)
    return np.concatenate([heads, packed], axis=2), np.repeat(scales.astype(np.float64), group, axis=1) * values


FORMS = {
    Q1_0: Form(1, "F16", 128),
    Q2_0: Form(2, "F16", 64),
    OLDER_Q2_0: Form(2, "F16", 128),
    I2_S: Form(2, "I8", 128),
}


@pytest.mark.parametrize("number", OWN_TYPES)
def test_a_tensor_is_what_its_formula_says(number, tmp_path, rng):
    drawn = {f"blk.{i}.x.weight": draw(rng, number) for i in range(3)}
    in_file = {name: (abs(number), (ROWS, COLUMNS), data) for name, (data, _) in drawn.items()}
    found = write_blocks(tmp_path / "x.gguf", in_file)
    for name, (_, expected) in drawn.items():
        tensor = found[name]
        tensor.check_readable()
        assert (tensor.kind, tensor.form, tensor.shape) == (OWN_TYPES[number].name, FORMS[number], (ROWS, COLUMNS))
        for start, stop in ((0, ROWS), (3, 20)):
            # The scale of I2_S has 22 bits here, those of others are exact.
            rtol = 2.0**-22 if number == I2_S else 0
            np.testing.assert_allclose(tensor.read(start, stop), expected[start:stop], rtol=rtol)
            codes = tensor.read_codes(start, stop)
            np.testing.assert_array_equal(reference.values_of_codes(codes), tensor.read(start, stop))
    assert found["blk.0.x.weight"].read_codes(0, 0).codes.shape == (0, COLUMNS)


# One type for all, others beside it over layers, and rows that share blocks: one bit stays, or takes four or eight.
@pytest.mark.parametrize(
    ("numbers", "rows", "bits"),
    [
        ((Q1_0,) * 4, (32, 24), {1}),
        ((Q2_0, I2_S, Q2_0, I2_S), (32, 24), {2}),
        ((Q1_0, Q2_0, Q1_0, Q1_0), (32, 24), {4}),
        ((Q1_0, Q1_0, I2_S, I2_S), (32, 24), {4}),
        ((Q1_0, I2_S, Q1_0, Q1_0), (24, 24), {4, 8}),
    ],
)
def test_codes_pass_through(numbers, rows, bits, tmp_path, rng):
    names = [f"{layer}.{part}.weight" for layer in range(2) for part in ("q", "k")]
    in_file = {
        name: (abs(number), (count, COLUMNS), draw(rng, number, count)[0])
        for name, number, count in zip(names, numbers, rows * 2)
    }
    tensors = Tensors(tmp_path, dict(write_blocks(tmp_path / "x.gguf", in_file)))
    linear = test_passthrough.linear_of(rows, COLUMNS)
    got, stored = test_passthrough.native_rows(tensors, linear)
    assert {form.bits for form in stored.forms} == bits
    expected = test_passthrough.read_rows(tensors, linear)
    np.testing.assert_array_equal(got[:, : sum(rows)].astype(np.float32), expected)


def test_rows_that_are_no_whole_blocks_of_the_older_type_are_refused(tmp_path, rng):
    data, _ = draw(rng, Q2_0, ROWS, 192)
    in_file = {f"{i}.weight": (Q2_0, (ROWS, 192), data.reshape(-1)[: data.size * 15 // 16]) for i in range(2)}
    with pytest.raises(CheckpointError, match="a shape that it cannot have"):
        write_blocks(tmp_path / "x.gguf", in_file)


def test_a_file_that_ends_early_is_not_taken_for_an_older_one(tmp_path, rng):
    """The last tensor may have lost as much as the older type has less."""
    data, _ = draw(rng, Q2_0)
    in_file = {f"{i}.weight": (Q2_0, (ROWS, COLUMNS), data) for i in range(2)}
    write_blocks(tmp_path / "x.gguf", in_file)
    whole = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[: -(data.size // 20)])
    with pytest.raises(CheckpointError, match="ends within tensor"):
        GgufFile(tmp_path / "short.gguf")


@pytest.mark.skipif(not LLAMA_PYTHON, reason="set TINYCHAT_LLAMA_PYTHON to a Python with llama_cpp")
@pytest.mark.parametrize("name", ["Q1_0", "Q2_0", "Q2_K", "TQ1_0", "TQ2_0", *TABLES])
def test_numbers_are_llama_cpps(name, tmp_path, rng):
    number = {"Q1_0": Q1_0, "Q2_0": Q2_0}.get(name) or int(gguf.GGMLQuantizationType[name])
    if number in OWN_TYPES:
        blocks = draw(rng, number)[0]
    else:
        blocks = test_passthrough.random_blocks(rng, name, ROWS, COLUMNS)
    found = write_blocks(tmp_path / "x.gguf", {"x": (number, (ROWS, COLUMNS), blocks)})["x"]
    file = tmp_path / "blocks.npy"
    np.save(file, blocks)
    command = [LLAMA_PYTHON, "-c", DEQUANTIZE, str(file), name, json.dumps(ROWS * COLUMNS)]
    subprocess.run(command, check=True, timeout=60)
    # Of a scale and a minimum, compilers may round the product or not.
    rtol = 1e-6 if name == "Q2_K" else 0
    np.testing.assert_allclose(found.read(0, ROWS).reshape(-1), np.load(file), rtol=rtol, atol=rtol)
