"""Random checkpoints: complete, of the asked shape, and with activations of a sane size."""

import make_random_checkpoint
import numpy as np
import pytest

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors
from tinychat.errors import SettingError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random") / "tiny"
    make_random_checkpoint.write_checkpoint("tiny", folder, tokenizer=folder / "missing")
    return open_checkpoint(folder)


def test_every_tensor_is_there(checkpoint):
    check_tensors(checkpoint)


def test_layers_of_two_kinds(tmp_path, monkeypatch):
    smaller = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64, "num_hidden_layers": 4}
    shape = make_random_checkpoint.config_of("qwen3.5-0.8b") | smaller
    monkeypatch.setattr(make_random_checkpoint, "config_of", lambda name: shape)
    make_random_checkpoint.write_checkpoint("qwen3.5-0.8b", tmp_path / "model", tokenizer=tmp_path / "missing")
    check_tensors(open_checkpoint(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "mean", "deviation"),
    [
        ("model.layers.1.mlp.gate_proj.weight", 0, 128**-0.5),
        ("model.layers.1.mlp.down_proj.weight", 0, (384 * 4) ** -0.5),
        ("model.layers.0.self_attn.o_proj.weight", 0, (128 * 4) ** -0.5),
        ("model.norm.weight", 1, 0.1),
    ],
)
def test_weights_have_the_spread_of_trained_ones(checkpoint, name, mean, deviation):
    values = checkpoint.tensors.read(name).astype(np.float64)
    assert np.isclose(values.mean(), mean, atol=6 * deviation / np.sqrt(values.size))
    assert np.isclose(values.std(), deviation, rtol=6 / np.sqrt(values.size))


def test_large_weights_are_drawn_in_pieces_like_small_ones(monkeypatch):
    def drawn():
        pieces = make_random_checkpoint.draw(np.random.default_rng(3), "w", (7, 11), 1)
        return np.concatenate(list(pieces)).astype(np.float32)

    whole = drawn()
    monkeypatch.setattr(make_random_checkpoint, "VALUES_AT_ONCE", 10)
    assert drawn().shape == whole.shape == (77,)
    assert np.array_equal(drawn(), whole)


def test_unknown_shapes_leave_no_folder(tmp_path):
    with pytest.raises(SettingError):
        make_random_checkpoint.write_checkpoint("huge", tmp_path / "out")
    assert not (tmp_path / "out").exists()
