"""Evened-out activations: the same function, and int8 loses less."""

import families
import numpy as np
import pytest
from safetensors.numpy import save_file

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import write_model_folder
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.smoothing import smoothed
from tinychat.conversion.source import Source
from tinychat.engine.loading import load_engine
from tinychat.engine.sequence import new_sequence
from tinychat.generate.sequence import logits_of_all
from tinychat.models.layout import Quantization

TEXTS = [[(7 * i + 3 * seed) % 250 + 3 for i in range(40)] for seed in range(3)]
IDS = [(11 * i) % 250 + 3 for i in range(50)]


def outputs(checkpoint):
    float_pass = FloatPass(Source(checkpoint), [IDS])
    hidden = float_pass.embed()
    for layer in range(len(checkpoint.config.layer_runs)):
        hidden = float_pass.run_layer(layer, hidden)
    return float_pass.logits(hidden)


@pytest.fixture(params=["tinyllama", "llama-all-biases", "qwen3", "phi4-mini"])
def uneven(request, tmp_path):
    """A checkpoint with a few large columns, in norms and between up and down projections."""
    variant = families.BY_NAME[request.param]
    folder = families.write_checkpoint(variant, tmp_path / "checkpoint")
    weights = {name: values.astype(np.float32) for name, values in families.make_weights(variant).items()}
    for name, values in weights.items():
        if "layernorm" in name:
            values[3::37] *= 40
        elif "up_proj" in name:
            up = values[len(values) // 2 :] if "gate_up_proj" in name else values
            up[5::41] *= 30
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file(weights, folder / "model.safetensors")
    return open_checkpoint(folder)


def test_the_function_stays(uneven):
    even = smoothed(uneven, TEXTS)
    name = "model.layers.0.mlp.down_proj.weight"
    assert not np.allclose(even.tensors.read(name), uneven.tensors.read(name))
    expected = outputs(uneven)
    np.testing.assert_allclose(outputs(even), expected, atol=2e-4 * expected.std())


# Norms of 1 + weight, before and after; none before; one for both, with biases; weights that are transposed; linears of
# two sizes; a norm whose result is added to the residual stream too; linears of few numbers behind the same norm; norms
# inside of attention and MLP; large linears of decays and gates behind it.
OTHERS = [
    "gemma2",
    "olmo2",
    "stablelm-parallel",
    "gpt2",
    "gemma4",
    "gemma3n",
    "lfm3",
    "laguna",
    "qwen3.5",
    "granite-hybrid",
    "bitnet",
    "ling-3.0-flash",
]


@pytest.mark.parametrize("name", OTHERS)
def test_the_function_of_other_layers_stays(name, tmp_path):
    checkpoint = open_checkpoint(families.write_checkpoint(families.BY_NAME[name], tmp_path / "checkpoint"))
    even = smoothed(checkpoint, TEXTS)
    names = even.tensors.by_name.keys()
    assert any(not np.array_equal(even.tensors.read(part), checkpoint.tensors.read(part)) for part in names)
    expected = outputs(checkpoint)
    np.testing.assert_allclose(outputs(even), expected, atol=1e-4 * expected.std())


def test_norms_of_several_mixtures_stay(tmp_path):
    checkpoint = open_checkpoint(families.write_checkpoint(families.BY_NAME["inkling2-loop"], tmp_path / "checkpoint"))
    even = smoothed(checkpoint, TEXTS)
    assert even.tensors.by_name == checkpoint.tensors.by_name


def test_rows_are_read_in_parts(uneven):
    even = smoothed(uneven, TEXTS).tensors
    up = Source(uneven).layout("gate_up_proj").sources[-1].format(0)
    for name in (f"{up}.weight", "model.layers.1.mlp.down_proj.weight"):
        np.testing.assert_array_equal(even.read(name, 3, 9), even.read(name)[3:9])


def test_int8_loses_less(uneven, tmp_path):
    exact = outputs(uneven)
    errors = []
    for name, texts in ("plain", []), ("smoothed", TEXTS):
        folder = write_model_folder(uneven.path, tmp_path / name, Quantization("int8"), texts=texts)
        found = logits_of_all(new_sequence(load_engine(folder, threads=1), 64), IDS)
        errors.append(np.square(found - exact).mean() ** 0.5)
    assert errors[1] < 0.9 * errors[0]
