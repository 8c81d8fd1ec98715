"""The script that compares kinds of weights: what it reads out of a GGUF file is the checkpoint it was made of."""

import families
import gguf_files
import numpy as np
import pytest

from tinychat.checkpoint.checkpoint import open_checkpoint

gguf = pytest.importorskip("gguf", reason="reads GGUF files with the package gguf")
gguf_file = pytest.importorskip("comparison.gguf_file")
accuracy = pytest.importorskip("accuracy")


def test_a_gguf_file_gives_its_checkpoint_back(tmp_path):
    variant = families.BY_NAME["smollm2"]
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    gguf_files.write_variant(variant, tmp_path / "model.gguf")
    size = accuracy.checkpoint_of_gguf(tmp_path / "model.gguf", checkpoint, tmp_path / "made")
    weights = families.make_weights(variant)
    assert size == sum(4 * values.size for values in weights.values() if values.ndim > 1)
    assert_same_weights(tmp_path / "made", weights)


def test_lengthened_rows_are_shortened_again(tmp_path):
    variant = families.BY_NAME["tinyllama"]
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    gguf_file.write_gguf(checkpoint, tmp_path / "model.gguf", row_multiple=256)
    longest = max(tensor.shape[0] for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors)
    assert longest % 256 == 0
    accuracy.checkpoint_of_gguf(tmp_path / "model.gguf", checkpoint, tmp_path / "made")
    assert_same_weights(tmp_path / "made", families.make_weights(variant))


def assert_same_weights(folder, weights):
    made = open_checkpoint(folder)
    assert made.tensors.by_name.keys() == weights.keys()
    for name, expected in weights.items():
        np.testing.assert_array_equal(made.tensors.read(name), expected.astype(np.float32))
