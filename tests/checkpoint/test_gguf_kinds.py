"""Every field that the readers look at, with values of every kind: each is read, or refused in one line."""

import re
from contextlib import suppress

import families
import gguf
import gguf_files
import ml_dtypes
import numpy as np
import pytest
from fuzzing.gguf_headers import STRING, TENSOR_TYPES, Header, Tensor, array, scalar, text, values
from fuzzing.readers import gguf_file

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.gguf_checkpoint import check_architecture, text_files, unpacked
from tinychat.checkpoint.gguf_families import FAMILIES
from tinychat.checkpoint.gguf_file import open_gguf
from tinychat.checkpoint.gguf_header import read_beginning
from tinychat.checkpoint.gguf_types import OWN_TYPES
from tinychat.conversion.convert import check_tensors
from tinychat.errors import CheckpointError, TextError, TinychatError, UnsupportedModelError
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template

ONLY_COMPUTED = ("Q8_1", "I8", "I16", "I32", "I64", "F64")
VOCABULARIES = ("gpt2", "llama")
ROPE_SCALING = "llama.rope.scaling.type"
# One of each kind, of those that `values` has: the fuzzer draws from all.
KINDS = (
    "1 as I", "0 as ?", "-1.5 as d", "nan as d", "lowest q", "text", "no UTF-8", "controls", "no f", "1 of I", "3 of b",
    "3 of ?", "3 of f", "3 of d", "many of f", "texts 1", "texts 2", "texts 3", "array of arrays", "unknown kind",
)  # fmt: skip


class Asked(dict):
    """Metadata that remember which of their keys somebody looked at."""

    def __init__(self, metadata):
        super().__init__(metadata)
        self.keys_asked = set()

    def get(self, key, default=None):
        self.keys_asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.keys_asked.add(key)
        return super().__getitem__(key)


def read(path):
    """Read a file as the program does; return the error of one that is refused."""
    try:
        with unpacked(path) as folder:
            checkpoint = open_checkpoint(folder)
            check_tensors(checkpoint)
            for name in checkpoint.tensors.by_name:
                checkpoint.tensors.read(name)
            load_template(folder, load_tokenizer(folder))
    except TinychatError as error:
        assert "\n" not in str(error)
        return error
    return None


def fields_read(path):
    """Return the keys that are looked at while a file is read."""
    (file,) = open_gguf(path)
    file.metadata = Asked(file.metadata)
    text_files([file])
    return sorted(file.metadata.keys_asked | {"general.alignment", "split.count"})


def write(path, header):
    # A file that is still open is not read again where size and time are the same.
    path.unlink(missing_ok=True)
    path.write_bytes(header.file())
    return path


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_every_field_takes_a_value_of_every_kind(kind, tmp_path):
    """Errors name the file; what the tokenizer's libraries refuse has the name of theirs."""
    data = gguf_file(kind)
    sound = tmp_path / "sound.gguf"
    sound.write_bytes(data)
    assert read(sound) is None
    keys = fields_read(sound)
    assert {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens", "split.count"} <= {*keys}
    outcomes = []
    for key in keys:
        for number, name in enumerate(KINDS):
            header = Header(data)
            header.set(key, values()[name])
            path = write(tmp_path / f"{key}-{number}.gguf", header)
            with suppress(TinychatError):
                check_architecture(read_beginning(path), path)
            outcomes.append(error := read(path))
            if error is not None:
                assert path.stem in str(error), (key, name)
            path.unlink()
    refused = sum(outcome is not None for outcome in outcomes)
    assert 0.2 < refused / len(outcomes) < 0.9


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_field_of_an_architecture_takes_a_value_of_every_kind(architecture, tmp_path):
    """In memory: the values of small files, of several layers, and whatever else a family asks for."""
    small = gguf_files.write_variant(families.BY_NAME["smollm2"], tmp_path / "small.gguf")
    (file,) = open_gguf(small)
    plain = {key.replace("llama.", f"{architecture}."): value for key, value in file.metadata.items()}
    plain |= {"general.architecture": architecture, f"{architecture}.attention.sliding_window": 8}

    def refused(metadata):
        file.metadata = Asked(metadata)
        try:
            text_files([file])
        except (CheckpointError, UnsupportedModelError, TextError) as error:
            assert "\n" not in str(error)
        return file.metadata.keys_asked

    keys = {key for key in refused(plain) if key.startswith(f"{architecture}.")}
    assert len(keys) > 10
    wrong = [0, -1, 1 << 63, 0.5, float("nan"), float("inf"), "many", b"\xff", "", [], ["a", "b"], True]
    wrong += [np.array(each) for each in ([], [0], [1, 2], [1.5, float("nan")], [True, False])]
    wrong += [np.zeros(100_000, np.uint8), np.arange(5000), ["a"] * 5000]
    for key in sorted(keys):
        for value in wrong:
            refused(plain | {key: value})


@pytest.mark.parametrize(
    ("kind", "key", "value", "error", "reason"),
    [
        (
            "gpt2",
            "general.architecture",
            array(4, bytes(8), 2),
            UnsupportedModelError,
            r"architecture '\[0 0\]' is not",
        ),
        ("gpt2", "general.alignment", (STRING, text(b"32")), CheckpointError, "general.alignment that cannot be"),
        (
            "gpt2",
            "llama.block_count",
            (STRING, text(b"1")),
            CheckpointError,
            "num_hidden_layers is '1'; expected an in",
        ),
        ("gpt2", ROPE_SCALING, array(4, bytes(8), 2), CheckpointError, "rope"),
        ("gpt2", "tokenizer.ggml.pre", array(STRING, text(b"a"), 1), UnsupportedModelError, "pre is .*not supported"),
        ("gpt2", "tokenizer.ggml.merges", array(STRING, text(b"a\tb c"), 1), TextError, "merges"),
        (
            "gpt2",
            "tokenizer.ggml.merges",
            array(STRING, text(b"a b c"), 1),
            TextError,
            "merges is not a list of two pa",
        ),
        ("gpt2", "tokenizer.ggml.tokens", array(4, bytes(24), 6), TextError, "tokens is not a list of texts"),
        ("gpt2", "tokenizer.ggml.token_type", array(STRING, bytes(48), 6), TextError, "token_type is not a list"),
        ("gpt2", "tokenizer.ggml.token_type", scalar(4, 1), TextError, "token_type is not a list"),
        (
            "gpt2",
            "tokenizer.ggml.add_bos_token",
            (STRING, text(b"no")),
            TextError,
            "add_bos_token is not true or false",
        ),
        ("llama", "tokenizer.ggml.scores", array(STRING, bytes(48), 6), TextError, "scores is not a list"),
        ("llama", "tokenizer.ggml.scores", array(12, b"\xff" * 48, 6), TextError, "scores is not a list of finite"),
    ],
)
def test_the_error_names_file_and_key(kind, key, value, error, reason, tmp_path):
    header = Header(gguf_file(kind))
    header.set(key, value)
    found = read(write(tmp_path / "x.gguf", header))
    assert type(found) is error
    # Of a long path an error about the architecture shows the end.
    assert re.search(rf"^\S*{re.escape(tmp_path.name)}/x\.gguf\W.*{reason}", str(found)), found


def test_nonsense_as_map_of_characters_is_not_looked_at(tmp_path):
    header = Header(gguf_file("llama"))
    header.set("tokenizer.ggml.precompiled_charsmap", array(0, b"\xff" * 99, 99))
    assert read(write(tmp_path / "x.gguf", header)) is None


def test_more_added_tokens_than_any_vocabulary_are_refused(tmp_path):
    header = Header(gguf_file("gpt2"))
    count = 30_000
    header.set("tokenizer.ggml.tokens", array(STRING, b"".join(text(b"%d" % i) for i in range(count)), count))
    header.set("tokenizer.ggml.token_type", array(0, b"\3" * count, count))
    error = read(write(tmp_path / "x.gguf", header))
    assert "x.gguf: tokenizer.ggml.token_type is not of at most 20000" in str(error)


def blocks_of(number):
    """Return how many weights a type has in a block, and their bytes; None where there is none of this number."""
    if number in OWN_TYPES:
        return OWN_TYPES[number].columns, OWN_TYPES[number].bytes
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
    except ValueError:
        return None


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "rope_freqs.weight", "nobody.reads.this"])
@pytest.mark.parametrize("number", TENSOR_TYPES)
def test_tensors_of_every_type_are_read_or_refused(number, name, tmp_path):
    header = Header(gguf_file("gpt2"))
    header.tensors = [tensor for tensor in header.tensors if tensor.name != name.encode()]
    is_vector = name.startswith("rope")
    header.tensors.append(Tensor(name.encode(), [8] if is_vector else [32, 32], number, len(header.data)))
    plain = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
    header.data += np.ones(32 * 32 * 8, plain.get(number, np.uint8)).tobytes()
    error = read(write(tmp_path / "x.gguf", header))
    block, _ = blocks_of(number) or (0, 0)
    if not block:
        assert f"x.gguf: tensor '{name}' has type {number}, which is not supported; get" in str(error)
    elif block > (1 if is_vector else 32):
        assert f"gives tensor '{name}' a shape that it cannot have" in str(error)
    elif gguf.GGMLQuantizationType(number).name in ONLY_COMPUTED and name != "nobody.reads.this":
        kind = gguf.GGMLQuantizationType(number).name
        assert f"x.gguf: tensor '{name}' has type {kind}, which is not supported; get the model in" in str(error)
    else:
        assert error is None


def test_models_whose_activations_are_turned_are_refused(tmp_path):
    header = Header(gguf_file("gpt2"))
    header.set("prism.hadamard.block_size", scalar(4, 128))
    error = read(write(tmp_path / "x.gguf", header))
    assert isinstance(error, UnsupportedModelError)
    assert "x.gguf: a model whose activations are turned (Hadamard) is not supported" in str(error)


def test_factors_of_absurd_size_are_refused(tmp_path):
    for sizes in ([16, 2], [1 << 17]):
        header = Header(gguf_file("gpt2"))
        header.tensors.append(Tensor(b"rope_freqs.weight", sizes, 0, len(header.data)))
        header.data += bytes(4 * int(np.prod(sizes)))
        error = read(write(tmp_path / "x.gguf", header))
        assert "x.gguf: tensor rope_freqs.weight has shape" in str(error)


def test_parts_of_a_split_file_are_files_of_their_own(tmp_path):
    header = Header(gguf_file("gpt2"))
    header.set("split.count", scalar(4, 2))
    first = write(tmp_path / "x-00001-of-00002.gguf", header)
    second = tmp_path / "x-00002-of-00002.gguf"
    second.symlink_to(first.name)
    assert f"{second} is the same file as another part" in str(read(first))
    second.unlink()
    second.write_bytes(first.read_bytes())
    assert f"{second} has tensor 'blk.0.attn_k.weight', as another part of {first.name}" in str(read(first))
    header.tensors = []
    write(second, header)
    assert read(first) is None
    second.write_bytes(b"")
    assert isinstance(read(first), CheckpointError)
