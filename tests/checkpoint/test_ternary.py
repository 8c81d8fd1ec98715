"""Ternary checkpoints: packed weights and rounded ones against their formulas, and a model of them."""

import json

import engines
import families
import numpy as np
import pytest
import reference
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.group_codes import in_22_bits
from tinychat.conversion.passthrough import passthrough_quantization
from tinychat.conversion.pipeline import default_recipe
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.generate.sequence import logits_of_all
from tinychat.kernels.simd import ROUNDER
from tinychat.models.passthrough import Form

VARIANT = families.BY_NAME["bitnet"]
OFFLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = OFFLINE | {"quantization_mode": "online", "modules_to_not_convert": ["model.layers.1.mlp", "k_proj"]}
NAME = "model.layers.1.self_attn.q_proj"


ROUNDED = 2.0**-22  # 22 bits


def pack(values):
    """Return ternary numbers [N, K] as transformers packs them: four rows in a byte."""
    quarters = (values + 1).astype(np.uint8).reshape(4, -1, values.shape[1])
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


def write(folder, rng, section, variant=VARIANT):
    """Write a checkpoint of ternary weights, packed or not; return the values of its tensors."""
    families.write_checkpoint(variant, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    tensors, values = load_file(folder / "model.safetensors"), {}
    for name in [*tensors]:
        values[name] = tensors[name].astype(np.float32)
        if name.endswith("proj.weight") and section["quantization_mode"] == "offline":
            ternary = rng.integers(-1, 2, values[name].shape)
            # A number of bfloat16 that keeps outputs about as large as inputs.
            scale = np.float32(rng.integers(200, 256) / 2048)
            tensors[name], tensors[f"{name}_scale"] = pack(ternary), scale.reshape(1).astype(tensors[name].dtype)
            times = scale if section["linear_class"] == "autobitlinear" else 1 / scale
            values[name] = (ternary * times).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return values


@pytest.mark.parametrize("linear_class", ["autobitlinear", "bitlinear"])
def test_packed_weights_are_what_their_formula_says(linear_class, tmp_path, rng):
    values = write(tmp_path, rng, OFFLINE | {"linear_class": linear_class})
    checkpoint = open_checkpoint(tmp_path)
    assert not any(name.endswith("_scale") for name in checkpoint.tensors.by_name)
    for name, expected in values.items():
        np.testing.assert_allclose(checkpoint.tensors.read(name).astype(np.float32), expected, rtol=ROUNDED)
    tensor, expected = checkpoint.tensors[f"{NAME}.weight"], values[f"{NAME}.weight"]
    assert (tensor.kind, tensor.form) == ("BitNet", Form(2, "I8", 32))
    np.testing.assert_allclose(tensor.read(5, 60), expected[5:60], rtol=ROUNDED)
    np.testing.assert_array_equal(reference.values_of_codes(tensor.read_codes(5, 60)), tensor.read(5, 60))
    # 172 columns make no whole groups.
    assert checkpoint.tensors["model.layers.1.mlp.down_proj.weight"].form is None


def test_numbers_are_rounded_where_training_changed_them(tmp_path, rng):
    values = write(tmp_path, rng, ONLINE)
    tensors = open_checkpoint(tmp_path).tensors
    for name, numbers in values.items():
        found = tensors.read(name).astype(np.float64)
        if name.endswith("_proj.weight") and ".1.mlp." not in name and "k_proj" not in name:
            scale = np.abs(numbers.astype(np.float64)).mean()
            np.testing.assert_allclose(found, scale * np.clip(np.rint(numbers / scale), -1, 1), rtol=1e-6)
            assert {*np.unique(np.sign(found))} == {-1, 0, 1}
        else:
            np.testing.assert_array_equal(found, numbers)


def test_a_model_of_ternary_codes_predicts_what_its_values_do(tmp_path, rng):
    """Only activations of eight bits, and the embedding, which is rounded, differ."""
    variant = families.Variant("bitnet-wide", VARIANT.config | {"intermediate_size": 192}, "bfloat16")
    values = write(tmp_path / "packed", rng, OFFLINE, variant)
    assert default_recipe(tmp_path / "packed").quant == "native"
    quantization = dict(passthrough_quantization(open_checkpoint(tmp_path / "packed")).passthrough)
    assert {name for name, linear in quantization.items() if linear.forms[0].bits == 2} == (
        {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    )
    made = tinychat.convert(tmp_path / "packed", tmp_path / "native", check=False)
    kept = json.loads((made / "tinychat.json").read_text())["codes"]["kept"]
    assert kept == {"BitNet": 7 * 3}
    plain = families.write_checkpoint(variant, tmp_path / "plain")
    save_file(values, plain / "model.safetensors")
    stored = engines.open_sequence(made)
    ids = engines.draw_ids(stored, 40)
    expected = logits_of_all(engines.open_sequence(tinychat.convert(plain, tmp_path / "f32", "f32"), kv="f32"), ids)
    error = logits_of_all(stored, ids) - expected
    assert error.std() < 0.04 * expected.std()


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
def test_a_packed_model_predicts_what_it_does_in_transformers(tmp_path, rng, monkeypatch):
    """Activations are rounded in groups here, and for each token there: so these are left as they are in both."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("accelerate", reason="transformers needs it for these files")
    from transformers.integrations import bitnet

    monkeypatch.setattr(bitnet.ActQuant, "apply", lambda x: x)
    write(tmp_path / "packed", rng, OFFLINE)
    # Its own `float` refuses quantized models.
    theirs = torch.nn.Module.float(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed")).eval()
    ours = engines.open_sequence(tinychat.convert(tmp_path / "packed", tmp_path / "f32", "f32"), kv="f32")
    ids = engines.draw_ids(ours, 40)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    assert np.abs(logits_of_all(ours, ids) - expected).max() < 1e-3 * expected.std()


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("weight", lambda data: data[0], "has shape .* not two axes"),
        ("weight", lambda data: data.astype(np.int32), "is int32, not of 8 bits"),
        ("weight_scale", lambda data: data * np.float32("nan"), "is not one number"),
        ("weight_scale", lambda data: data * 0, "is not one number"),
        ("weight_scale", lambda data: np.repeat(data, 3), "is not one number"),
        ("weight_scale", lambda data: np.repeat(data, 16)[:, None], "is not one number"),
        ("weight_scale", lambda data: data[:0], "is not one number"),
    ],
)
def test_damaged_weights_are_refused_in_one_line(part, change, reason, tmp_path, rng):
    write(tmp_path, rng, OFFLINE)
    tensors = load_file(tmp_path / "model.safetensors")
    name = f"{NAME}.{part}"
    tensors[name] = np.ascontiguousarray(change(tensors[name].astype(np.float32) if "scale" in part else tensors[name]))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{NAME}\.{part} {reason}"):
        open_checkpoint(tmp_path).tensors[f"{NAME}.weight"].read_codes(0, 1)


def test_weights_that_training_lost_are_refused(tmp_path, rng):
    write(tmp_path, rng, ONLINE)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{NAME}.weight"][3, 5] = np.inf
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="holds weights that are not finite"):
        open_checkpoint(tmp_path).tensors.read(f"{NAME}.weight")


def test_scales_are_rounded_to_what_sums_are_exact_with(rng):
    numbers = (rng.uniform(0.5, 2, 1000) * 10.0 ** rng.integers(-6, 6, 1000)).astype(np.float32)
    for number in [*numbers, np.float32(2 / 3), np.float32(0.50000006), np.nextafter(np.float32(1), np.float32(0))]:
        found = in_22_bits(number)
        assert abs(float(found) - float(number)) <= ROUNDED * float(number)
        assert float(np.float32(ROUNDER) * found) == float(ROUNDER) * float(found)


def test_norms_before_linears_are_refused(tmp_path, rng):
    write(tmp_path, rng, OFFLINE | {"use_rms_norm": True})
    with pytest.raises(UnsupportedModelError, match="use_rms_norm is not supported"):
        open_checkpoint(tmp_path)
