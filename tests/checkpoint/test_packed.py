"""Weights packed by GPTQ, AWQ, compressed-tensors and mlx against the values of their formulas."""

import json

import families
import numpy as np
import packed_checkpoints
import pytest
import reference
from memory_tensors import MemoryTensor
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.packed import PackedWeight, Packing, read_packing
from tinychat.checkpoint.tensors import open_tensors
from tinychat.conversion.convert import check_tensors, convert
from tinychat.conversion.passthrough import passthrough_quantization
from tinychat.conversion.pipeline import default_recipe
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.models.architectures import read_config
from tinychat.models.passthrough import Form

VARIANT = packed_checkpoints.VARIANT
KINDS = ("gptq", "awq", "compressed", "mlx")
CASES = {
    "gptq v1": (packed_checkpoints.gptq, {}, Packing("gptq", 4, 32, True), Form(4, "I8", 32, 32, True)),
    "gptq v2": (packed_checkpoints.gptq, {"version": 2}, Packing("gptq", 4, 32), Form(4, "I8", 32, 32, True)),
    "gptq symmetric": (packed_checkpoints.gptq, {"symmetric": True}, Packing("gptq", 4, 32, True), Form(4)),
    "gptq 8 bits": (packed_checkpoints.gptq, {"bits": 8}, Packing("gptq", 8, 32, True), Form(8, "F16", 32, 32, True)),
    "gptq act order": (packed_checkpoints.gptq, {"ordered": False}, Packing("gptq", 4, 32, True), None),
    "gptq rows": (packed_checkpoints.gptq, {"symmetric": True}, Packing("gptq", 4, 0, True), Form(4, "F16", 32)),
    "awq": (packed_checkpoints.awq, {}, Packing("awq", 4, 32), Form(4, "I8", 32, 32, True)),
    "compressed": (packed_checkpoints.compressed, {}, Packing("compressed-tensors", 4, 32), Form(4, "F32")),
    "compressed f16": (
        packed_checkpoints.compressed,
        {"dtype": np.float16},
        Packing("compressed-tensors", 4, 32),
        Form(4),
    ),
    "compressed zeros": (
        packed_checkpoints.compressed,
        {"symmetric": False},
        Packing("compressed-tensors", 4, 32),
        Form(4, "I8", 32, 32, True),
    ),
    "mlx": (packed_checkpoints.mlx, {}, Packing("mlx", 4, 32), Form(4, offsets=True)),
    "mlx bf16": (packed_checkpoints.mlx, {"dtype": bfloat16}, Packing("mlx", 4, 32), Form(4, "F32", offsets=True)),
    "mlx 2 bits": (packed_checkpoints.mlx, {"bits": 2}, Packing("mlx", 2, 32), Form(2, offsets=True)),
    "mlx 1 bit": (packed_checkpoints.mlx, {"bits": 1}, Packing("mlx", 1, 32), Form(2, offsets=True)),
    "mlx 3 bits": (packed_checkpoints.mlx, {"bits": 3}, Packing("mlx", 3, 32), Form(4, offsets=True)),
    "mlx 5 bits": (packed_checkpoints.mlx, {"bits": 5}, Packing("mlx", 5, 32), Form(8, offsets=True)),
    "mlx 6 bits": (packed_checkpoints.mlx, {"bits": 6}, Packing("mlx", 6, 32), Form(8, offsets=True)),
    "mlx 8 bits": (packed_checkpoints.mlx, {"bits": 8}, Packing("mlx", 8, 32), Form(8, "F32", offsets=True)),
}


def save(file, tensors):
    save_file({name: np.ascontiguousarray(data) for name, data in tensors.items()}, file)


@pytest.mark.parametrize("case", CASES)
def test_a_weight_is_what_its_formula_says(case, tmp_path, rng):
    make, settings, packing, form = CASES[case]
    N, K = 40, 96
    tensors, expected = make(rng, N, K, packing.group or K, **settings)
    save_file(
        {f"x.{name}": np.ascontiguousarray(data) for name, data in tensors.items()}, tmp_path / "model.safetensors"
    )
    weight = PackedWeight(open_tensors(tmp_path), "x", packing)
    assert weight.shape == (N, K)
    assert weight.form == form
    for start, stop in ((0, N), (3, 21)):
        np.testing.assert_allclose(weight.read(start, stop), expected[start:stop], rtol=0, atol=1e-7)
        if form is not None:
            codes = weight.read_codes(start, stop)
            assert codes.codes.shape[1] // codes.scales.shape[1] == form.group
            np.testing.assert_allclose(reference.values_of_codes(codes), expected[start:stop], rtol=0, atol=1e-7)
    # Numbers of float16 and codes: float32 holds their products.
    if form is not None and "mlx" not in case:
        np.testing.assert_array_equal(reference.values_of_codes(weight.read_codes(0, N)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_predicts_what_its_values_do(kind, tmp_path, rng):
    values = packed_checkpoints.write_checkpoint(kind, VARIANT, tmp_path / "packed", rng)
    checkpoint = open_checkpoint(tmp_path / "packed")
    check_tensors(checkpoint)
    for name, expected in values.items():
        np.testing.assert_allclose(checkpoint.tensors.read(name).astype(np.float64), expected, rtol=0, atol=1e-7)
    plain = families.write_checkpoint(VARIANT, tmp_path / "plain")
    save_file({name: data.astype(np.float32) for name, data in values.items()}, plain / "model.safetensors")
    found, expected = (convert(tmp_path / source, tmp_path / f"{source}-f32", "f32") for source in ("packed", "plain"))
    read = [load_file(folder / "model.safetensors") for folder in (found, expected)]
    for name in read[1]:
        np.testing.assert_allclose(read[0][name], read[1][name], rtol=0, atol=1e-7)
    assert read_config(found / "config.json") == read_config(expected / "config.json")


@pytest.mark.parametrize("kind", KINDS)
def test_codes_can_pass_through(kind, tmp_path, rng):
    packed_checkpoints.write_checkpoint(kind, VARIANT, tmp_path / "packed", rng)
    linears = dict(passthrough_quantization(open_checkpoint(tmp_path / "packed")).passthrough)
    assert {name for name, linear in linears.items() if linear.forms[0].bits == 4} == (
        {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"} | ({"embed_tokens"} if kind == "mlx" else set())
    )


def test_codes_are_native_by_default(tmp_path, rng):
    packed_checkpoints.write_checkpoint("awq", VARIANT, tmp_path / "packed", rng)
    assert default_recipe(tmp_path / "packed").quant == "native"
    made = tinychat.convert(tmp_path / "packed", tmp_path / "model", check=False)
    description = json.loads((made / "tinychat.json").read_text())
    assert description["codes"]["kept"] == {"AWQ": 7 * 3}


def test_mlx_may_have_other_settings_for_a_weight(tmp_path, rng):
    folder = tmp_path / "packed"
    values = packed_checkpoints.write_checkpoint("mlx", VARIANT, folder, rng)
    stem, tensors = "model.layers.1.mlp.up_proj", load_file(folder / "model.safetensors")
    parts, values[f"{stem}.weight"] = packed_checkpoints.mlx(rng, *values[f"{stem}.weight"].shape, 64, 8)
    save_file(tensors | {f"{stem}.{part}": data for part, data in parts.items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization"][stem] = {"bits": 8, "group_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = open_checkpoint(folder).tensors
    for name, expected in values.items():
        np.testing.assert_allclose(tensors.read(name).astype(np.float64), expected, rtol=0, atol=1e-7)


def section(method, **settings):
    return {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 128, **settings}}


GROUP = packed_checkpoints.SETTINGS["compressed"]["quantization_config"]["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (section("bitsandbytes"), "quantization by bitsandbytes"),
        (section("gptq", bits=3), "gptq with 3 bits"),
        (section("awq", bits=8), "awq with 8 bits"),
        (section("gptq", group_size="x"), "gptq with groups of 'x'"),
        (section("awq", group_size=-1), "awq with groups of -1"),
        (section("awq", version="gemv"), "awq in its version gemv"),
        (section("gptq", checkpoint_format="marlin"), "gptq in the format marlin"),
        (section("gptq", dynamic={"x": {"bits": 8}}), "gptq with other settings"),
        (section("compressed-tensors", format="marlin-24"), "compressed-tensors in the format marlin-24"),
        (section("compressed-tensors", format="pack-quantized", config_groups=7), "compressed-tensors in the format"),
        (
            section(
                "compressed-tensors",
                format="pack-quantized",
                config_groups={"g": {**GROUP, "input_activations": {"num_bits": 8}}},
            ),
            "compressed-tensors with other than weights in groups",
        ),
        ({"quantization": {"bits": 4, "group_size": 64, "mode": "mxfp4"}}, "mlx in its mode mxfp4"),
    ],
)
def test_what_is_not_supported_is_told_with_advice(config, reason):
    with pytest.raises(UnsupportedModelError, match=f"^file: {reason}.*use the unquantized checkpoint$") as caught:
        read_packing(config, "file")
    assert str(caught.value).isprintable()
    assert read_packing({"quantization_config": None}, "file") is None
    assert read_packing(section("gptq", group_size=-1), "file").group == 0


def spoiled(tmp_path, rng, kind, change):
    packed_checkpoints.write_checkpoint(kind, VARIANT, tmp_path / "packed", rng)
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    change(tensors)
    save_file(
        {name: np.ascontiguousarray(data) for name, data in tensors.items()}, tmp_path / "packed/model.safetensors"
    )
    return tmp_path / "packed"


STEM = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("kind", "part", "change", "reason"),
    [
        ("gptq", "qweight", lambda data: data[:-1], "has shape .* asks for|has shape"),
        ("gptq", "scales", lambda data: data[:-1], "scales has shape .* for 96 rows of 2 groups"),
        ("gptq", "qzeros", lambda data: data[:, :-1], r"qzeros has shape .*, not \[2, 12\]"),
        ("gptq", "g_idx", lambda data: data[:-1], "g_idx has shape"),
        ("gptq", "g_idx", lambda data: data + 9, "g_idx names groups that have no scale"),
        ("gptq", "qweight", lambda data: data.astype(np.float32), "expected whole numbers"),
        ("gptq", "qzeros", None, "no tensor"),
        ("gptq", "qweight", lambda data: data.astype(np.int64), "is int64, not of 32 bits"),
        ("compressed", "weight_shape", lambda data: data[:1], r"weight_shape has shape \[1\], not \[2\]"),
        ("awq", "qweight", lambda data: data.ravel(), "not two axes"),
        ("compressed", "weight_shape", lambda data: data + 1, "has shape .* for a weight of 97 rows, 65 columns"),
        ("compressed", "weight_scale", lambda data: data.astype(np.int32), "only F32, F16, BF16 can be read"),
        ("mlx", "biases", lambda data: data[:, :-1], "biases has shape"),
        ("mlx", "scales", lambda data: data[:, :-1], "has 64 columns of 4 bits, and scales for 32"),
    ],
)
def test_what_is_damaged_is_told_in_one_line(kind, part, change, reason, tmp_path, rng):
    def spoil(tensors):
        name = f"{STEM}.{part}"
        data = tensors.pop(name)
        if change is not None:
            tensors[name] = change(data)

    folder = spoiled(tmp_path, rng, kind, spoil)
    with pytest.raises(CheckpointError, match=reason) as caught:
        convert(folder, tmp_path / "model", "f32")
    assert str(caught.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_tensors_of_another_format_hold_no_packed_weights():
    with pytest.raises(CheckpointError, match="memory: a tensor is no list of whole numbers"):
        MemoryTensor(np.zeros((2, 2), np.int32)).read_integers()
