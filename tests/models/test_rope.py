import math
from dataclasses import replace

import numpy as np
import pytest

from tinychat.models.architectures import parse_config
from tinychat.models.rope import attention_factor, grid_turns, inverse_frequencies, query_scales, rope_tables

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}

VARIANTS = {
    "default": {"rope_theta": 1e6},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 32}},
    "llama3, length beside it": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    "llama3, no length": {"rope_scaling": LLAMA3, "max_position_embeddings": 8192},
    "yarn": {"rope_scaling": YARN},
    "yarn, real lengths": {
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "rope_scaling": {**YARN, "original_max_position_embeddings": 32768},
    },
    "yarn, exact range": {"rope_scaling": {**YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2}},
    "yarn, factor given": {"rope_scaling": {**YARN, "attention_factor": 1.7}},
    "yarn, mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}},
    "yarn, mscale of nothing": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0}},
    "yarn, small factor": {"rope_scaling": {**YARN, "factor": 1.0}},
    "yarn, no width": {"rope_scaling": {**YARN, "original_max_position_embeddings": 1}},
}


def make_config(**changes):
    return parse_config({**BASE, **changes}, "config.json")


def test_layout_and_convention():
    table = rope_tables(make_config(), 3, 11)
    assert table.shape == (8, 64)
    assert table.dtype == np.float32
    assert table.flags.c_contiguous
    pair, position = 5, 9
    angle = position * 10_000.0 ** (-2 * pair / 64)
    np.testing.assert_allclose(table[position - 3, pair], math.cos(angle), rtol=1e-6)
    np.testing.assert_allclose(table[position - 3, 32 + pair], math.sin(angle), rtol=1e-6)


def test_half_of_the_pairs_turn_by_row_and_half_by_column():
    found = grid_turns(make_config(hidden_size=144), (9, 11))
    assert (found.shape, found.dtype) == ((99, 72), np.float32)
    frequencies = 10_000.0 ** -(np.arange(18) / 18)
    for place in (10, 96, 98):
        row, column = divmod(place, 11)
        angles = np.concatenate([row * frequencies, column * frequencies])
        expected = np.concatenate([np.cos(angles), np.sin(angles)])
        np.testing.assert_allclose(found[place], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_part_equals_the_whole(variant):
    config = make_config(**VARIANTS[variant])
    whole = rope_tables(config, 0, 40, sequence_length=200)
    part = rope_tables(config, 17, 29, sequence_length=200)
    np.testing.assert_array_equal(part, whole[17:29])


def test_nothing_asked_is_nothing():
    assert rope_tables(make_config(), 5, 5).shape == (0, 64)


def test_dynamic_base_grows_only_beyond_the_training_length():
    config = make_config(**VARIANTS["dynamic"])
    plain = rope_tables(make_config(), 0, 64)
    np.testing.assert_array_equal(rope_tables(config, 0, 64), plain)
    assert np.abs(rope_tables(config, 0, 64, sequence_length=65) - plain).max() > 1e-3


def test_qwen_1s_base_grows_by_doublings_of_the_training_length():
    sizes = {key: value for key, value in BASE.items() if key not in ("architectures", "model_type")}
    raw = {**sizes, "architectures": ["QWenLMHeadModel"], "kv_channels": 64, "seq_length": 64}
    config = parse_config(raw, "config.json")
    plain = make_config(head_dim=64)
    for length, growth in ((64, 1), (65, 3), (128, 3), (129, 7), (512, 15), (513, 31)):
        grown = replace(plain, rope_theta=10_000 * growth ** (64 / 62))
        np.testing.assert_allclose(inverse_frequencies(config, length), inverse_frequencies(grown), rtol=1e-12)
    factors = query_scales(config, range(60, 70))
    np.testing.assert_array_equal(factors[:4], 1)
    np.testing.assert_allclose(factors[4:], [math.log(p + 1) / math.log(64) for p in range(64, 70)], rtol=1e-12)


def test_yarn_multiplies_by_its_attention_factor():
    table = rope_tables(make_config(**VARIANTS["yarn, factor given"]), 0, 1)
    np.testing.assert_array_equal(table[0, :32], np.float32(1.7))
    np.testing.assert_array_equal(table[0, 32:], 0)


@pytest.mark.live
@pytest.mark.parametrize("sequence_length", [40, 200])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(variant, sequence_length):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    raw = {**BASE, **VARIANTS[variant]}
    embedding = LlamaRotaryEmbedding(LlamaConfig(**raw))
    cos, sin = embedding(torch.zeros(1), torch.arange(sequence_length)[None])
    ours = make_config(**VARIANTS[variant])

    frequencies = inverse_frequencies(ours, sequence_length)
    np.testing.assert_allclose(frequencies, embedding.inv_freq.numpy(), rtol=2e-6)
    assert attention_factor(ours.rope_scaling) == pytest.approx(embedding.attention_scaling, rel=1e-12)
    theirs = np.concatenate((cos[0, :, :32].numpy(), sin[0, :, :32].numpy()), axis=1)
    # Theirs are computed in float32: at position 200 an angle is off by up to 200 * 6e-8.
    np.testing.assert_allclose(rope_tables(ours, 0, sequence_length), theirs, atol=5e-5)
