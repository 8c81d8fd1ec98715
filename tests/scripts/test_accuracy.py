"""The script that compares kinds of weights: what it reads out of a GGUF file is the checkpoint it was made of."""

import families
import numpy as np
import pytest

from tinychat.checkpoint.checkpoint import open_checkpoint

gguf = pytest.importorskip("gguf", reason="reads GGUF files with the package gguf")
gguf_file = pytest.importorskip("comparison.gguf_file")
accuracy = pytest.importorskip("accuracy")


def write_gguf(path, variant):
    """Write a checkpoint's tensors as llama.cpp's converter does: other names, query and key channels in pairs."""
    config, weights = variant.config, families.make_weights(variant)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    short = gguf_file.OUTSIDE_LAYERS | gguf_file.IN_LAYERS
    writer = gguf.GGUFWriter(path, "llama")
    for name, values in weights.items():
        stem, _, suffix = name.rpartition(".")
        parts = stem.split(".")
        layer, rest = (f"blk.{parts[2]}.", ".".join(parts[3:])) if parts[1] == "layers" else ("", stem)
        values = values.astype(np.float32)
        if short[rest] in heads:
            n, width = heads[short[rest]], values.shape[1]
            values = values.reshape(n, 2, -1, width).swapaxes(1, 2).reshape(-1, width)
        writer.add_tensor(f"{layer}{short[rest]}.{suffix}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_its_checkpoint_back(tmp_path):
    variant = families.BY_NAME["smollm2"]
    checkpoint = families.write_checkpoint(variant, tmp_path / "checkpoint")
    write_gguf(tmp_path / "model.gguf", variant)
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
    assert made.tensors.names() == weights.keys()
    for name, expected in weights.items():
        np.testing.assert_array_equal(made.tensors.read(name), expected.astype(np.float32))
