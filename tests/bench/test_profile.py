"""The profile of a tiny model: what it lists, never how fast that was."""

import json

import engines
import pytest

from tinychat.bench.profile import profile
from tinychat.bench.random_model import write_random_model
from tinychat.engine.loading import load_engine
from tinychat.engine.sequence import new_sequence
from tinychat.errors import SettingError
from tinychat.models.shapes import config_of

TINY = config_of("tiny")
KERNELS = {
    "embedding",
    "norms and quantize",
    "qkv_proj",
    "rope and append",
    "attention",
    "quantize attention",
    "o_proj",
    "gate_up_proj",
    "activation and quantize",
    "down_proj",
    "lm_head",
}


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    folder = write_random_model(TINY, tmp_path_factory.mktemp("random"))
    return new_sequence(load_engine(folder, threads=1), 400)


@pytest.mark.parametrize("T", [1, 17])
def test_every_kernel_of_the_forward_pass_has_its_share(sequence, T):
    rows = profile(sequence, T, 100)
    assert {row["kernel"] for row in rows} == KERNELS
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert all(row["bytes"] > 0 for row in rows)
    assert all(row["multiply_adds"] > 0 for row in rows if row["kernel"] != "embedding")
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)


def test_convolutions_have_their_share(tmp_path):
    folder = engines.convert_variant("lfm2", "int4", tmp_path / "model")
    sequence = engines.open_sequence(folder, context_size=256, threads=2)
    rows = {row["kernel"]: row for row in profile(sequence, 17, 100)}
    assert rows.keys() == KERNELS | {"conv_in_proj", "short convolution", "quantize convolution", "conv_out_proj"}
    D, convolutions, attentions = sequence.engine.config.hidden_size, 3, 1
    assert rows["conv_in_proj"]["multiply_adds"] == 17 * convolutions * 3 * D * D
    assert rows["short convolution"]["multiply_adds"] == 17 * convolutions * 5 * D
    assert rows["o_proj"]["multiply_adds"] == 17 * attentions * D * D
    assert all(row["bytes"] > 0 for row in rows.values())


def test_what_layers_share_is_counted_once(tmp_path):
    folder = engines.convert_variant("gemma4", "int4", tmp_path / "model")
    sequence = engines.open_sequence(folder, context_size=256, threads=2)
    rows = {row["kernel"]: row for row in profile(sequence, 17, 100)}
    assert rows.keys() >= {"qkv_proj", "query_proj", "wide_qkv_proj", "wide_query_proj", "inputs of layers"}
    D, heads = sequence.engine.config.hidden_size, 4
    # Two layers of heads of 40, one of 56, and of each one that reads the keys of another.
    assert rows["qkv_proj"]["multiply_adds"] == 17 * 2 * (heads + 2) * 40 * D
    assert rows["wide_query_proj"]["multiply_adds"] == 17 * heads * 56 * D
    assert rows["wide_down_proj"]["multiply_adds"] == 17 * 2 * 344 * D
    assert all(row["bytes"] > 0 for row in rows.values())


def test_states_have_their_share(tmp_path):
    folder = engines.convert_variant("qwen3.5", "int4", tmp_path / "model")
    sequence = engines.open_sequence(folder, context_size=256, threads=2)
    rows = {row["kernel"]: row for row in json.loads(json.dumps(profile(sequence, 17, 100)))}
    assert rows.keys() >= KERNELS | {"delta_in_proj", "convolution", "delta rule", "gated norm", "delta_out_proj"}
    net = sequence.engine.config.delta_net
    state = len(net.layers) * net.value_size * net.key_dim
    assert rows["delta rule"]["multiply_adds"] == 17 * 3 * state


def test_latents_have_their_share(tmp_path):
    folder = engines.convert_variant("youtu", "int4", tmp_path / "model")
    sequence = engines.open_sequence(folder, context_size=256, threads=2)
    rows = {row["kernel"]: row for row in profile(sequence, 17, 100)}
    latents = {"norms of latents", "q_b_proj", "quantize queries", "k_b_proj", "quantize latents", "v_b_proj"}
    assert rows.keys() == KERNELS | latents
    config, sizes = sequence.engine.config, sequence.engine.config.latents
    H, L, rank = config.num_attention_heads, config.num_hidden_layers, sizes.kv_lora_rank
    assert rows["k_b_proj"]["multiply_adds"] == 17 * L * H * rank * sizes.qk_nope_head_dim
    assert rows["attention"]["multiply_adds"] == L * H * (2 * rank + sizes.qk_rope_head_dim) * sum(range(101, 118))
    assert all(row["bytes"] > 0 for row in rows.values())


@pytest.mark.parametrize(("T", "start"), [(1, 400), (17, 384), (257, 0)])
def test_what_does_not_fit_is_refused(sequence, T, start):
    with pytest.raises(SettingError, match="do not fit into a context of 400"):
        profile(sequence, T, start)


def test_work_is_counted_by_the_formulas(sequence):
    config = sequence.engine.config
    H, d, L = config.num_attention_heads, config.head_dim, config.num_hidden_layers
    rows = {row["kernel"]: row for row in profile(sequence, 17, 100)}
    assert rows["down_proj"]["multiply_adds"] == 17 * L * config.hidden_size * config.intermediate_size
    assert rows["attention"]["multiply_adds"] == 2 * L * H * d * sum(range(101, 118))
    assert rows["lm_head"]["multiply_adds"] == config.vocab_size * config.hidden_size
