"""Weights of FP8, NVFP4 and MXFP4 against the values of their formulas."""

import json

import engines
import families
import numpy as np
import packed_checkpoints
import pytest
import reference
from ml_dtypes import bfloat16, float8_e4m3fn
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.packed import unpack_weights
from tinychat.checkpoint.tensors import open_tensors
from tinychat.conversion.convert import check_tensors
from tinychat.conversion.pipeline import default_recipe
from tinychat.errors import CheckpointError, ConversionError, UnsupportedModelError
from tinychat.generate.sequence import logits_of_all
from tinychat.models.passthrough import Form

VARIANT = packed_checkpoints.VARIANT
DOWN = "model.layers.0.mlp.down_proj.weight"
BLOCK = (16, 32)
# Values of a sign, two bits of exponent and one of fraction.
E2M1 = np.array(
    [
        (-1) ** (c >> 3) * ((c & 1) / 2 if not c & 6 else 2.0 ** ((c >> 1 & 3) - 1) * (1 + (c & 1) / 2))
        for c in range(16)
    ]
)


def draw_float8(rng, shape):
    return (rng.standard_normal(shape) * 30).astype(float8_e4m3fn)


def fp8(rng, N, K, name="weight_scale_inv", shape=None, dtype=np.float32):
    """Return the tensors of a weight of float8, and its values; without a shape, with a scale for each block."""
    values = draw_float8(rng, (N, K))
    rows, columns = np.arange(N)[:, None] // BLOCK[0], np.arange(K) // BLOCK[1]
    given = (-(-N // BLOCK[0]), -(-K // BLOCK[1])) if shape is None else shape
    scales = rng.uniform(1e-4, 1e-3, given).astype(dtype)
    wide = scales.astype(np.float64)
    spread = wide[rows, columns] if shape is None else wide.reshape(-1, 1)
    tensors = {"weight": values, name: scales, "input_scale": np.float32([1])}
    return tensors, values.astype(np.float64) * spread


def draw_codes(rng, N, K):
    """Return codes, packed, and their values."""
    codes = rng.integers(0, 16, (N, K), np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, E2M1[codes]


def nvfp4(rng, N, K, by="modelopt"):
    """Return the tensors of a weight of NVFP4, and its values."""
    packed, values = draw_codes(rng, N, K)
    scales, factor = np.abs(draw_float8(rng, (N, K // 16))), np.float32(rng.uniform(1e-5, 1e-4))
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": factor}
    if by == "compressed-tensors":
        tensors = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": np.float32([1 / factor])}
    return tensors, values * np.repeat(scales.astype(np.float64), 16, axis=1) * np.float64(factor)


def mxfp4(rng, N, K):
    """Return the tensors of a weight of MXFP4, and its values."""
    packed, values = draw_codes(rng, N, K)
    exponents = rng.integers(115, 123, (N, K // 32), np.uint8)
    tensors = {"weight_packed": packed, "weight_scale": exponents}
    return tensors, values * np.repeat(2.0 ** (exponents.astype(int) - 127), 32, axis=1)


def mlx(rng, N, K, mode):
    """Return the tensors of a weight of one of mlx's modes, and its values."""
    if mode == "mxfp8":
        numbers, exponents = draw_float8(rng, (N, K)), rng.integers(115, 123, (N, K // 32), np.uint8)
        tensors = {"weight": numbers.view(np.uint32), "scales": exponents}
        return tensors, numbers.astype(np.float64) * np.repeat(2.0 ** (exponents.astype(int) - 127), 32, axis=1)
    if mode == "mxfp4":
        tensors, values = mxfp4(rng, N, K)
        return {"weight": tensors["weight_packed"].view(np.uint32), "scales": tensors["weight_scale"]}, values
    tensors, values = nvfp4(rng, N, K)
    scales = tensors["weight_scale"].view(np.uint8)
    return {"weight": tensors["weight"].view(np.uint32), "scales": scales}, values / np.float64(
        tensors["weight_scale_2"]
    )


def of_compressed(layout):
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {}}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [*BLOCK]}
NVIDIA = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
# What makes a weight [N, K], how its checkpoint is described, its kind and its form.
CASES = {
    "blocks": (fp8, FP8, "FP8", None),
    "blocks, bfloat16": (lambda r, N, K: fp8(r, N, K, dtype=bfloat16), FP8, "FP8", None),
    "tensor": (lambda r, N, K: fp8(r, N, K, shape=()), {**FP8, "weight_block_size": None}, "FP8", None),
    "modelopt": (
        lambda r, N, K: fp8(r, N, K, "weight_scale", (1,)),
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        "FP8",
        None,
    ),
    "rows": (
        lambda r, N, K: fp8(r, N, K, "weight_scale", (N, 1), bfloat16),
        of_compressed("float-quantized"),
        "FP8",
        None,
    ),
    "rows, one axis": (lambda r, N, K: fp8(r, N, K, "weight_scale", (N,)), {"quant_method": "fbgemm_fp8"}, "FP8", None),
    "nvfp4": (nvfp4, NVIDIA, "NVFP4", Form(4, "F16", 16, table=True)),
    "nvfp4, compressed": (
        lambda r, N, K: nvfp4(r, N, K, "compressed-tensors"),
        of_compressed("nvfp4-pack-quantized"),
        "NVFP4",
        Form(4, "F16", 16, table=True),
    ),
    "mlx mxfp4": (
        lambda r, N, K: mlx(r, N, K, "mxfp4"),
        {"mode": "mxfp4", "bits": 4, "group_size": 32},
        "MXFP4",
        Form(4, "E8M0", 32, table=True),
    ),
    "mlx nvfp4": (
        lambda r, N, K: mlx(r, N, K, "nvfp4"),
        {"mode": "nvfp4", "bits": 4, "group_size": 16},
        "NVFP4",
        Form(4, "F16", 16, table=True),
    ),
    "mlx mxfp8": (lambda r, N, K: mlx(r, N, K, "mxfp8"), {"mode": "mxfp8", "bits": 8, "group_size": 32}, "MXFP8", None),
    "mxfp4": (mxfp4, of_compressed("mxfp4-pack-quantized"), "MXFP4", Form(4, "E8M0", 32, table=True)),
}


def write_checkpoint(case, folder, rng, changed=None):
    """Write a model whose linears are small floats; return the values of each of its tensors.

    changed : tensors of the first down_proj by the last part of their names.
    """
    make, section, *_ = CASES[case]
    families.write_checkpoint(VARIANT, folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": section}
    (folder / "config.json").write_text(json.dumps(config))
    tensors, values = load_file(folder / "model.safetensors"), {}
    for name in [*tensors]:
        values[name] = tensors[name].astype(np.float64)
        if name.endswith("proj.weight"):
            parts, values[name] = make(rng, *tensors.pop(name).shape)
            tensors |= {f"{name.removesuffix('.weight')}.{part}": np.asarray(data) for part, data in parts.items()}
    tensors |= {f"model.layers.0.mlp.down_proj.{part}": data for part, data in (changed or {}).items()}
    save_file({name: np.asarray(data, order="C") for name, data in tensors.items()}, folder / "model.safetensors")
    return values


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_formula(case, tmp_path, rng):
    values = write_checkpoint(case, tmp_path / "checkpoint", rng)
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    check_tensors(checkpoint)
    _, _, kind, form = CASES[case]
    for name, expected in values.items():
        tensor = checkpoint.tensors[name]
        for start, stop in ((0, len(expected)), (3, min(29, len(expected)))):
            np.testing.assert_allclose(tensor.read(start, stop).astype(np.float64), expected[start:stop], rtol=4e-6)
        if name.endswith("proj.weight"):
            assert (tensor.kind, tensor.form) == (kind, form)
            if form is not None:
                codes = tensor.read_codes(3, 29)
                np.testing.assert_array_equal(reference.values_of_codes(codes), tensor.read(3, 29))


@pytest.mark.parametrize(("case", "quant"), [("blocks", "int8"), ("nvfp4", "native"), ("mxfp4", "native")])
def test_a_model_computes_what_its_checkpoint_says(case, quant, tmp_path, rng):
    """Against the same checkpoint in float32: what differs are roundings to eight bits."""
    write_checkpoint(case, tmp_path / "checkpoint", rng)
    assert default_recipe(tmp_path / "checkpoint").quant == quant
    sequence = engines.open_sequence(tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", quant, check=False))
    plain = tinychat.convert(tmp_path / "checkpoint", tmp_path / "plain", "f32")
    ids = engines.draw_ids(sequence, 40)
    expected = logits_of_all(engines.open_sequence(plain, kv="f32"), ids)
    error = logits_of_all(sequence, ids) - expected
    assert error.std() < 0.03 * expected.std()


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("blocks", {"weight_scale_inv": np.ones((4, 2), np.float32)}, r"weight_scale_inv has shape \[4, 2\], expected"),
        ("rows", {"weight_scale": np.ones((5, 1), np.float32)}, r"weight_scale has shape \[5, 1\], expected"),
        (
            "blocks",
            {"weight": np.ones((64, 96), np.float32)},
            "weight' is F32; expected whole numbers",
        ),
        ("nvfp4", {"weight": np.ones((64, 47), np.uint8)}, r"weight has shape \[64, 47\], not rows of whole groups"),
        ("nvfp4", {"weight": np.ones((64, 48), np.int32)}, "weight is int32, not uint8"),
        ("nvfp4", {"weight_scale": np.ones((64, 6), np.float32)}, "weight_scale' is F32; expected whole numbers"),
        ("nvfp4", {"weight_scale": np.ones((64, 3), float8_e4m3fn)}, r"weight_scale has shape \[64, 3\], expected"),
        ("nvfp4", {"weight_scale_2": np.ones(2, np.float32)}, "weight_scale_2 is not one number"),
        ("nvfp4", {"weight_scale_2": np.float32(np.nan)}, "weight_scale_2 is not one number"),
        ("nvfp4, compressed", {"weight_global_scale": np.float32([0])}, "weight_global_scale is not one number"),
        ("mlx mxfp8", {"weight": np.ones((64, 23), np.uint32)}, r"weight has shape \[64, 23\], not rows of whole"),
        ("mlx mxfp8", {"weight": np.ones((64, 24), np.int32)}, "weight is int32, not uint32"),
        ("mlx mxfp8", {"scales": np.ones((64, 2), np.uint8)}, r"scales has shape \[64, 2\], expected"),
        ("mlx nvfp4", {"scales": np.ones((64, 6), np.int32)}, "scales is int32, not uint8"),
        ("mxfp4", {"weight_scale": np.ones((64, 2), np.uint8)}, r"weight_scale has shape \[64, 2\], expected"),
        ("mxfp4", {"weight_scale": np.ones((64, 3), np.int32)}, "weight_scale is int32, not uint8"),
    ],
)
def test_what_does_not_fit_is_refused(case, changed, message, tmp_path, rng):
    write_checkpoint(case, tmp_path / "checkpoint", rng, changed)
    with pytest.raises(CheckpointError, match=f"down_proj.{message}"):
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", "f32")


@pytest.mark.parametrize("case", ["nvfp4", "mxfp4", "blocks"])
def test_numbers_that_are_not_finite_are_refused(case, tmp_path, rng):
    nan = {
        "nvfp4": {"weight_scale": np.full((64, 6), np.nan, float8_e4m3fn)},
        "mxfp4": {"weight_scale": np.full((64, 3), 255, np.uint8)},
        "blocks": {"weight": np.full((64, 96), np.nan, float8_e4m3fn)},
    }
    write_checkpoint(case, tmp_path / "checkpoint", rng, nan[case])
    for quant in ("f32", "int8") if case == "blocks" else ("f32", "native"):
        with pytest.raises(ConversionError, match=r"down_proj"):
            tinychat.convert(tmp_path / "checkpoint", tmp_path / quant, quant, check=False)


def test_sizes_of_blocks_that_are_none_are_those_of_most(tmp_path, rng):
    """A file can name anything; 128 x 128 is what all published ones have."""
    write_checkpoint("blocks", tmp_path / "checkpoint", rng)
    file = tmp_path / "checkpoint" / "config.json"
    for size in ([0, 32], ["a", 1], [1, 2, 3], 5):
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"quantization_config": {**FP8, "weight_block_size": size}})
        )
        tensors = open_checkpoint(tmp_path / "checkpoint").tensors
        with pytest.raises(CheckpointError, match=r"expected \[1, 1\]"):
            tensors.read("model.layers.0.mlp.down_proj.weight")


@pytest.mark.parametrize("section", [FP8, None])
def test_float8_without_scales_is_refused(section, tmp_path, rng):
    """Whether a scale is lost, or the settings are, or the weights are of all experts."""
    save_file(
        {"x.weight": draw_float8(rng, (16, 32)), "y_scale_inv": np.ones(1, np.float32)}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section} if section else {}))
    with pytest.raises(CheckpointError, match=r"'x\.weight' is F8_E4M3; only F32, F16, BF16 can be read"):
        unpack_weights(open_tensors(tmp_path)).read("x.weight")


def test_settings_may_be_in_a_file_of_their_own(tmp_path, rng):
    """As older checkpoints of modelopt have them."""
    values = write_checkpoint("nvfp4", tmp_path / "checkpoint", rng)
    file = tmp_path / "checkpoint" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "checkpoint").tensors.read(DOWN)
    (tmp_path / "checkpoint" / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    np.testing.assert_allclose(open_checkpoint(tmp_path / "checkpoint").tensors.read(DOWN), values[DOWN], rtol=4e-6)
    assert default_recipe(tmp_path / "checkpoint").quant == "native"


def test_scales_may_have_axes_of_one_element(tmp_path, rng):
    values = write_checkpoint("blocks", tmp_path / "checkpoint", rng)
    scales = np.ones((4, 1, 3, 1), np.float32)
    write_checkpoint(
        "blocks", tmp_path / "other", rng, {"weight": np.ones((64, 96), float8_e4m3fn), "weight_scale_inv": scales}
    )
    np.testing.assert_array_equal(open_checkpoint(tmp_path / "other").tensors.read(DOWN), np.ones(values[DOWN].shape))


@pytest.mark.parametrize(
    ("case", "changed", "message"),
    [
        ("nvfp4", {"pre_quant_scale": np.ones(96, np.float32)}, "pre_quant_scale multiplies inputs"),
        (
            "nvfp4, compressed",
            {"weight_zero_point": np.ones((64, 6), np.int8)},
            "weight_zero_point is of whole numbers",
        ),
        ("mxfp4", {"weight_shape": np.array([64, 96])}, "weight_shape is of whole numbers"),
        ("rows", {"weight": np.ones((3, 64, 96), float8_e4m3fn)}, r"weight is float8 of shape \[3, 64, 96\]"),
    ],
)
def test_what_is_more_than_small_floats_is_refused(case, changed, message, tmp_path, rng):
    write_checkpoint(case, tmp_path / "checkpoint", rng, changed)
    with pytest.raises(UnsupportedModelError, match=message):
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", "f32")


@pytest.mark.parametrize("section", [{"quant_method": "modelopt_x"}, of_compressed("int-quantized")])
def test_other_ways_are_refused(section, tmp_path, rng):
    write_checkpoint("blocks", tmp_path / "checkpoint", rng)
    file = tmp_path / "checkpoint" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": section}))
    with pytest.raises(UnsupportedModelError, match="use the unquantized checkpoint"):
        open_checkpoint(tmp_path / "checkpoint")


@pytest.mark.live
@pytest.mark.parametrize("case", ["blocks", "tensor"])
def test_numbers_are_those_of_transformers(case, tmp_path, rng):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    write_checkpoint(case, tmp_path / "checkpoint", rng)
    config = transformers.FineGrainedFP8Config(**CASES[case][1], dequantize=True)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "checkpoint", quantization_config=config, dtype=torch.float32
    )
    tensors = open_checkpoint(tmp_path / "checkpoint").tensors
    for name, weight in theirs.state_dict().items():
        if name.endswith("proj.weight"):
            np.testing.assert_allclose(tensors.read(name), weight.float().numpy(), rtol=1e-6)
