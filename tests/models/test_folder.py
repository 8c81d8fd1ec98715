"""Model folders that are whole, and all the ways in which one is not."""

import errno
import json
import mmap
import shutil

import engines
import numpy as np
import pytest

from tinychat.errors import ModelFolderError, TinychatError, UnsupportedModelError
from tinychat.models.folder import header_of, open_model_folder
from tinychat.models.layout import LINE, Quantization, TensorSpec, tensor_specs

methods = pytest.mark.parametrize("method", engines.METHODS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return engines.convert_variant("qwen3-tied", "int4", tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole, tmp_path):
    """Return a model folder of the test's own to damage."""
    return shutil.copytree(whole, tmp_path / "model")


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_refused(folder, match):
    with pytest.raises(ModelFolderError, match=match) as caught:
        open_model_folder(folder)
    assert "\n" not in str(caught.value)


@methods
@pytest.mark.parametrize("name", ["llama-all-biases", "smollm2", "qwen3"])
def test_tensors_are_as_the_layout_says(method, name, tmp_path):
    opened = open_model_folder(engines.convert_variant(name, method, tmp_path / "model"))
    specs = tensor_specs(opened.config, Quantization(method, 32))
    assert opened.quantization == Quantization(method, 32)
    assert opened.tensors.keys() == specs.keys()
    for tensor, spec in zip(opened.tensors.values(), specs.values()):
        assert tensor.shape == spec.shape
        assert tensor.dtype == {"U8": np.uint8, "I8": np.int8, "F32": np.float32}[spec.dtype]
        assert tensor.flags.c_contiguous
        assert tensor.flags.writeable, "a read-only array is another type to Numba"
        assert tensor.flags.aligned


@methods
def test_lines_of_weights_begin_on_cache_lines(method, tmp_path):
    opened = open_model_folder(engines.convert_variant("qwen3", method, tmp_path / "model"))
    for name, tensor in opened.tensors.items():
        if name.endswith(("packed", "values")):
            assert tensor.ctypes.data % LINE == 0, name


def test_writing_to_a_mapped_tensor_never_reaches_the_file(folder):
    before = (folder / "model.safetensors").read_bytes()
    open_model_folder(folder).tensors["embed_tokens.packed"][:] = 0
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
def test_huge_pages_are_asked_for_and_a_system_that_has_none_is_fine(folder, monkeypatch):
    advice = []

    class Recording(mmap.mmap):
        def madvise(self, option, *place):
            advice.append(option)
            raise OSError(errno.EINVAL, "compiled without huge pages")

    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", Recording)
        tensors = open_model_folder(folder).tensors
    assert advice == [mmap.MADV_HUGEPAGE]
    for name, tensor in open_model_folder(folder).tensors.items():
        np.testing.assert_array_equal(tensors[name], tensor)


def test_the_header_is_padded_to_a_line():
    for columns in range(1, 40):
        header, offsets = header_of({"a": TensorSpec("U8", (1, columns)), "b": TensorSpec("F32", (3,))})
        assert len(header) % LINE == 0
        assert int.from_bytes(header[:8], "little") == len(header) - 8
        assert offsets == {"a": len(header), "b": len(header) + columns}


@pytest.mark.parametrize("name", ["tinychat.json", "config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, folder):
    (folder / name).unlink()
    assert_refused(folder, name)


def test_a_folder_that_is_none(tmp_path):
    assert_refused(tmp_path / "nowhere", "is not a model folder")
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", "is not a model folder")


@pytest.mark.parametrize("name", ["tinychat.json", "config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", '{"format": 1}', "[" * 100_000])
def test_damaged_json_is_named(name, text, folder):
    (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises((ModelFolderError, UnsupportedModelError), match=name) as caught:
        open_model_folder(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("found", [1, 5, 0, "2", None, [2], 2.5])
def test_another_format_is_refused(found, folder):
    change_json(folder / "tinychat.json", format=found)
    assert_refused(folder, r"says format .*, this tinychat reads 2 to 4: convert the model again, or update tinychat")


@pytest.mark.parametrize(
    "found",
    [
        None,
        "int4",
        {},
        {"method": "int4"},
        {"method": "int4", "group_size": 32},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": 0, "zero": 8},
        {"method": "int3", "group_size": 32, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": 33, "int8": [], "frequent": 0},
        {"method": ["int4"], "group_size": 32, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": [32], "int8": [], "frequent": 0},
        {"method": "int4", "group_size": True, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": 32.0, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": "32", "int8": [], "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": None, "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": "o_proj", "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": ["q_proj"], "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": ["o_proj", 3], "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": [["o_proj"]], "frequent": 0},
        {"method": "f32", "group_size": 32, "int8": ["o_proj"], "frequent": 0},
        {"method": "f32", "group_size": 32, "int8": [], "frequent": 16},
        {"method": "int4", "group_size": 32, "int8": ["embed_tokens"], "frequent": 16},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": 8},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": -16},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": "16"},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": True},
        {"method": "int4", "group_size": 32, "int8": [], "frequent": 16_000_000},
    ],
)
def test_another_quantization_is_refused(found, folder):
    change_json(folder / "tinychat.json", quantization=found)
    assert_refused(folder, r"tinychat\.json|model\.safetensors is damaged")


@pytest.mark.parametrize(
    "found",
    [
        {"method": "int8", "group_size": 32, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": 64, "int8": [], "frequent": 0},
        {"method": "int4", "group_size": 32, "int8": ["o_proj"], "frequent": 0},
    ],
)
def test_weights_of_another_quantization_are_refused(found, folder):
    change_json(folder / "tinychat.json", quantization=found)
    assert_refused(folder, r"model\.safetensors is damaged")


@pytest.mark.parametrize(
    "changes",
    [{"num_hidden_layers": 2}, {"vocab_size": 600}, {"num_key_value_heads": 4}, {"tie_word_embeddings": False}],
)
def test_weights_of_another_model_are_refused(changes, folder):
    change_json(folder / "config.json", **changes)
    assert_refused(folder, r"model\.safetensors is damaged .*: convert the model again")


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 5000, -1])
def test_a_truncated_weight_file_is_refused(keep, folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:keep])
    assert_refused(folder, rf"{len(data[:keep])} bytes instead of {len(data)}")


def test_a_weight_file_that_goes_on_is_refused(folder):
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")
    assert_refused(folder, "bytes instead of")


@pytest.mark.parametrize("place", [0, 5, 20, 300])
def test_a_changed_header_is_refused(place, folder):
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[place] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert_refused(folder, r"model\.safetensors is damaged")


def test_a_weight_file_that_is_a_folder_is_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert_refused(folder, r"model\.safetensors cannot be read")


def test_an_unsupported_architecture_is_told_apart(folder):
    change_json(folder / "config.json", architectures=["MambaForCausalLM"], model_type="mamba")
    with pytest.raises(TinychatError, match="Mamba"):
        open_model_folder(folder)
