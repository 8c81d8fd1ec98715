"""The GGUF writer: llama.cpp's order of rows, names, numbers and vocabulary."""

import dataclasses

import families
import make_random_checkpoint
import numpy as np
import pytest
from safetensors.numpy import load_file

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.errors import UnsupportedModelError
from tinychat.models.architectures import parse_config
from tinychat.models.shapes import config_of

gguf = pytest.importorskip("gguf")
gguf_file = pytest.importorskip("comparison.gguf_file")


def rotate_halves(x, angles):
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def rotate_neighbours(x, angles):
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack((even * cos - odd * sin, odd * cos + even * sin), axis=-1).reshape(x.shape)


def test_interleaved_heads_score_alike_under_the_other_rotation(rng):
    heads, head_dim, columns, position = 3, 8, 5, 11
    weight = rng.standard_normal((heads * head_dim, columns))
    x = rng.standard_normal(columns)
    angles = position * 10000.0 ** -(np.arange(0, head_dim, 2) / head_dim)
    key = rng.standard_normal((heads, head_dim))
    theirs = (rotate_halves((weight @ x).reshape(heads, head_dim), angles) * key).sum(axis=1)
    swapped = gguf_file.interleave_heads(weight, heads)
    swapped_key = gguf_file.interleave_heads(key.reshape(-1, 1), heads).reshape(heads, head_dim)
    ours = (rotate_neighbours((swapped @ x).reshape(heads, head_dim), angles) * swapped_key).sum(axis=1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    make_random_checkpoint.write_checkpoint("tiny", folder / "tiny", tokenizer=folder / "missing")
    gguf_file.write_gguf(folder / "tiny", folder / "tiny.gguf")
    return open_checkpoint(folder / "tiny"), gguf.GGUFReader(folder / "tiny.gguf")


def test_all_weights_arrive_bit_for_bit(written):
    checkpoint, reader = written
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(checkpoint.tensors.by_name)
    for theirs, ours in gguf_file.tensor_names(checkpoint.config, gguf_file.FAMILIES["llama"]).items():
        values, found = checkpoint.tensors.read(theirs), tensors[ours]
        assert [*reversed(found.shape)] == [*values.shape]
        if values.ndim == 1:
            assert np.array_equal(found.data, values.astype(np.float32))
        elif "attn_q" not in ours and "attn_k" not in ours:
            assert found.data.tobytes() == values.tobytes()


def test_without_a_tokenizer_the_file_says_so(written):
    _, reader = written
    assert reader.fields["tokenizer.ggml.model"].contents() == "no_vocab"
    assert reader.fields["llama.vocab_size"].contents() == 32000


def test_stretched_frequencies_become_factors():
    config = parse_config(config_of("llama-3.2-1b"), "llama-3.2-1b")
    factors = gguf_file.rope_factors(config)
    assert factors.shape == (32,)
    assert (factors[0], factors[-1]) == (1, 32)


def test_other_architectures_are_refused():
    config = parse_config(config_of("tiny"), "tiny")
    with pytest.raises(UnsupportedModelError, match="plain Llama"):
        gguf_file.check_supported(dataclasses.replace(config, qkv_bias=True))


def test_qwen3_5_is_written_as_its_converter_would(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen3.5"], tmp_path / "checkpoint")
    with pytest.raises(UnsupportedModelError, match="with these layers cannot be compared"):
        gguf_file.write_gguf(checkpoint, tmp_path / "biases.gguf")
    alike = {"attention_bias": False, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
    variant = dataclasses.replace(families.BY_NAME["qwen3.5"], config=families.BY_NAME["qwen3.5"].config | alike)
    found = open_checkpoint(families.write_checkpoint(variant, tmp_path / "alike"))
    gguf_file.write_gguf(found.path, tmp_path / "alike.gguf")
    reader = gguf.GGUFReader(tmp_path / "alike.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    raw = load_file(found.path / "model.safetensors")
    assert len(tensors) == len(raw)
    delta, attention = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    assert np.array_equal(tensors["blk.0.ssm_conv1d.weight"], raw[f"{delta}conv1d.weight"][:, 0])
    assert np.array_equal(tensors["blk.0.ssm_a"], -np.exp(raw[f"{delta}A_log"]))
    assert np.array_equal(tensors["blk.0.ssm_dt.bias"], raw[f"{delta}dt_bias"])
    assert np.array_equal(tensors["blk.1.attn_q.weight"], raw[f"{attention}q_proj.weight"])
    assert np.allclose(tensors["blk.1.attn_q_norm.weight"], 1 + raw[f"{attention}q_norm.weight"])
    assert reader.fields["general.architecture"].contents() == "qwen35"
    assert reader.fields["qwen35.ssm.inner_size"].contents() == 2 * 48
    assert reader.fields["qwen35.full_attention_interval"].contents() == 2
