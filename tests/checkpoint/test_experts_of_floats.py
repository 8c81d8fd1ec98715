"""Experts of NVFP4 and MXFP8 in one tensor for all, as Inkling 2 has them, against the values of their formulas."""

import json
from types import SimpleNamespace

import families
import numpy as np
import pytest
import reference
from checkpoint.test_small_floats import draw_codes, draw_float8
from ml_dtypes import bfloat16, float8_e4m3fn
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors
from tinychat.conversion.pipeline import default_recipe
from tinychat.errors import CheckpointError, ConversionError, UnsupportedModelError
from tinychat.models.passthrough import Form

HIDDEN, INNER = 96, 64
VARIANT = families.Variant(
    "experts-of-floats",
    families.BY_NAME["inkling2-loop"].config | {"hidden_size": HIDDEN, "moe_intermediate_size": INNER},
)
EXPERTS, LAYERS = VARIANT.config["n_routed_experts"], VARIANT.config["num_hidden_layers"]
NAME = "model.llm.layers.{}.mlp.experts.{}_weight"
SHAPES = {"w13": (2 * INNER, HIDDEN), "w2": (HIDDEN, INNER)}
DENOMINATOR = "_outer_scale_denominator"


def nvfp4(rng, N, K, denominator=(EXPERTS,), dtype=np.float32):
    """Return the tensors of a weight of all experts, by the ends of their names, and its values."""
    packed, values = draw_codes(rng, EXPERTS * N, K)
    scales = np.abs(draw_float8(rng, (EXPERTS, N, K // 16)))
    amax = rng.uniform(0.02, 0.5, EXPERTS).astype(dtype)
    divisor = np.asarray(rng.uniform(2000, 3000, denominator)).astype(dtype)
    tensors = {
        "": packed.reshape(EXPERTS, N, K // 2),
        "_scale": scales,
        "_amax": amax,
        DENOMINATOR: divisor,
    }
    factors = amax.astype(np.float64) / divisor.astype(np.float64)
    spread = np.repeat(scales.astype(np.float64), 16, axis=2)
    return tensors, values.reshape(EXPERTS, N, K) * spread * factors[:, None, None]


def mxfp8(rng, N, K):
    """Return the same of a weight of float8."""
    numbers, exponents = draw_float8(rng, (EXPERTS, N, K)), rng.integers(110, 123, (EXPERTS, N, K // 32), np.uint8)
    spread = np.repeat(2.0 ** (exponents.astype(int) - 127), 32, axis=2)
    return {"": numbers, "_scale": exponents}, numbers.astype(np.float64) * spread


def plain(rng, N, K):
    """Return the same of a weight of plain numbers."""
    values = rng.standard_normal((EXPERTS, N, K)).astype(np.float32)
    return {"": values}, values.astype(np.float64)


def mixed(rng, N, K):
    """Return the same of a weight, in MXFP8 of gates and their inputs, in NVFP4 of what they give."""
    return nvfp4(rng, N, K) if (N, K) == SHAPES["w2"] else mxfp8(rng, N, K)


MAKERS = {
    "nvfp4": nvfp4,
    "nvfp4, one denominator": lambda rng, N, K: nvfp4(rng, N, K, ()),
    "nvfp4, bfloat16": lambda rng, N, K: nvfp4(rng, N, K, (1,), bfloat16),
    "mxfp8": mxfp8,
    "plain": plain,
    "mixed": mixed,
}


def write_checkpoint(kind, folder, rng, changed=None, section=None):
    """Write a model whose experts are stacked; return their values by layer and part.

    changed : what replaces tensors of the first layer's w2_weight by the ends of their names; None removes them.
    """
    families.write_checkpoint(VARIANT, folder)
    config = json.loads((folder / "config.json").read_text())
    if section:
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    file = folder / "model.safetensors"
    tensors, values = {n: data for n, data in load_file(file).items() if ".experts." not in n}, {}
    for layer in range(LAYERS):
        for part, shape in SHAPES.items():
            found, values[layer, part] = MAKERS[kind](rng, *shape)
            if (layer, part) == (0, "w2"):
                found |= changed or {}
            tensors |= {f"{NAME.format(layer, part)}{end}": d for end, d in found.items() if d is not None}
    save_file({name: np.asarray(data, order="C") for name, data in tensors.items()}, file)
    return values


def as_read(part, stored):
    """Return the values of an expert as the model has them: gates first, and outputs times their scale."""
    if part == "w13":
        return np.concatenate([stored[::2], stored[1::2]])
    return stored * VARIANT.config["route_scale"]


def of_one(checkpoint, layer, expert, part):
    return checkpoint.tensors[f"model.layers.{layer}.mlp.experts.{expert}.{part}_weight.weight"]


@pytest.mark.parametrize("kind", MAKERS)
def test_experts_are_those_of_the_formula(kind, tmp_path, rng):
    values = write_checkpoint(kind, tmp_path / "checkpoint", rng)
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    check_tensors(checkpoint)
    for (layer, part), of_all in values.items():
        for expert, stored in enumerate(of_all):
            expected = as_read(part, stored)
            tensor = of_one(checkpoint, layer, expert, part)
            is_codes = kind.startswith("nvfp4") or (kind == "mixed" and part == "w2")
            for start, stop in ((0, len(expected)), (3, 71)):
                found = tensor.read(start, stop).astype(np.float64)
                # A factor of NVFP4 has 18 bits.
                np.testing.assert_allclose(found, expected[start:stop], rtol=4e-6 if is_codes else 0)
            assert tensor.form == (Form(4, "F16", 16, table=True) if is_codes else None)
            if is_codes:
                np.testing.assert_array_equal(reference.values_of_codes(tensor.read_codes(3, 71)), tensor.read(3, 71))


@pytest.mark.parametrize("section", [None, {"quant_method": "nvfp4"}, {"quant_method": "modelopt"}])
def test_codes_of_nvfp4_pass_through_whatever_the_configuration_calls_them(section, tmp_path, rng):
    write_checkpoint("nvfp4", tmp_path / "checkpoint", rng, section=section)
    assert default_recipe(tmp_path / "checkpoint").quant == "native"
    folder = tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", check=False)
    description = json.loads((folder / "tinychat.json").read_text())
    assert description["codes"]["kept"] == {"NVFP4": LAYERS * EXPERTS * 2}


def test_numbers_of_mxfp8_are_quantized_as_those_of_packed_checkpoints_are(tmp_path, rng):
    write_checkpoint("mxfp8", tmp_path / "checkpoint", rng, section={"quant_method": "mxfp8"})
    assert default_recipe(tmp_path / "checkpoint").quant == "int8"
    write_checkpoint("plain", tmp_path / "plain", rng)
    assert default_recipe(tmp_path / "plain").quant == "int4"


@pytest.mark.parametrize("method", ["nvfp4", "mxfp8", "unheard-of"])
def test_a_method_that_is_not_known_is_refused_without_such_experts(method, tmp_path, rng):
    write_checkpoint("plain", tmp_path / "checkpoint", rng, section={"quant_method": method})
    for read in (open_checkpoint, default_recipe):
        with pytest.raises(UnsupportedModelError, match=f"quantization by {method} is not supported"):
            read(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("nvfp4", {"_scale": None}, "has no tensor 'model.layers.0.mlp.experts.w2_weight_scale'"),
        ("nvfp4", {"_amax": None}, "has no tensor 'model.layers.0.mlp.experts.w2_weight_amax'"),
        ("nvfp4", {DENOMINATOR: None}, f"has no tensor 'model.layers.0.mlp.experts.w2_weight{DENOMINATOR}'"),
        ("nvfp4", {"_amax": None, DENOMINATOR: None}, r"w2_weight\.weight has shape \[96, 32\], config.json asks for"),
        ("nvfp4", {"": np.ones((EXPERTS, HIDDEN, INNER // 2 - 1), np.uint8)}, "not rows of whole groups"),
        ("nvfp4", {"": np.ones((EXPERTS, HIDDEN, INNER // 2), np.int32)}, "w2_weight is int32, not uint8"),
        ("nvfp4", {"": np.ones((EXPERTS - 1, HIDDEN, INNER // 2), np.uint8)}, "has 5 experts"),
        ("nvfp4", {"": np.uint8(1)}, "has 0 experts"),
        (
            "nvfp4",
            {"_scale": np.ones((EXPERTS, HIDDEN, 3), float8_e4m3fn)},
            r"w2_weight_scale has shape \[96, 3\], expected \[96, 4\]",
        ),
        ("nvfp4", {"_scale": np.ones((EXPERTS, HIDDEN, 4), np.uint8)}, "w2_weight_scale is uint8, not float8"),
        ("nvfp4", {"_amax": np.ones(EXPERTS - 1, np.float32)}, "w2_weight_amax is of a tensor with 6 rows"),
        ("nvfp4", {"_amax": np.ones((EXPERTS, 2), np.float32)}, "w2_weight_amax is not one number"),
        ("nvfp4", {"_amax": np.full(EXPERTS, np.inf, np.float32)}, "w2_weight_amax is not one number"),
        ("nvfp4", {DENOMINATOR: np.float32(0)}, "w2_weight_outer_scale_denominator is not one number"),
        ("nvfp4", {DENOMINATOR: np.ones(2, np.float32)}, f"w2_weight{DENOMINATOR} is of a tensor with 6 rows"),
        ("mxfp8", {"_scale": None}, "w2_weight' is F8_E4M3; only F32, F16, BF16 can be read"),
        ("mxfp8", {"": np.ones((EXPERTS, HIDDEN, INNER), np.uint8)}, "w2_weight is uint8, not float8"),
        ("mxfp8", {"": np.ones((EXPERTS, HIDDEN, 48), float8_e4m3fn)}, r"w2_weight has shape \[96, 48\], not rows of"),
        (
            "mxfp8",
            {"_scale": np.ones((EXPERTS, HIDDEN, 4), np.uint8)},
            r"w2_weight_scale has shape \[96, 4\], expected \[96, 2\]",
        ),
        ("mxfp8", {"_scale": np.ones((EXPERTS, HIDDEN, 2), np.int32)}, "w2_weight_scale is int32, not uint8"),
        ("mxfp8", {"_scale": np.ones((3, HIDDEN, 2), np.uint8)}, "w2_weight_scale has 3 experts"),
    ],
)
def test_what_does_not_fit_is_refused(kind, changed, message, tmp_path, rng):
    write_checkpoint(kind, tmp_path / "checkpoint", rng, changed)
    with pytest.raises(CheckpointError, match=message):
        tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", "f32")


def test_a_factor_beyond_all_numbers_is_refused(tmp_path, rng):
    changed = {"_amax": np.full(EXPERTS, 1e30, np.float32), DENOMINATOR: np.float32(1e-30)}
    write_checkpoint("nvfp4", tmp_path / "checkpoint", rng, changed)
    for quant in ("f32", "native"):
        with pytest.raises(ConversionError, match="w2_weight"):
            tinychat.convert(tmp_path / "checkpoint", tmp_path / quant, quant, check=False)


@pytest.mark.live
@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_numbers_are_those_of_transformers(kind, tmp_path, rng):
    torch = pytest.importorskip("torch")
    loading = pytest.importorskip("transformers.core_model_loading")
    from safetensors.torch import load_file

    ends = ["", "_scale", "_amax", DENOMINATOR]
    model = SimpleNamespace(get_parameter=lambda name: torch.empty(1))
    write_checkpoint(kind, tmp_path / "checkpoint", rng)
    checkpoint, stored = open_checkpoint(tmp_path / "checkpoint"), load_file(tmp_path / "checkpoint/model.safetensors")
    for part in SHAPES:
        found = {end: stored[name] for end in ends if (name := f"{NAME.format(1, part)}{end}") in stored}
        found = loading.Inkling2LoopDequantizeExperts().convert(found, ends, [part], model=model, full_layer_name=part)
        for expert, stored_rows in enumerate(found[part].numpy()):
            theirs = as_read(part, stored_rows)
            np.testing.assert_allclose(of_one(checkpoint, 1, expert, part).read(0, len(theirs)), theirs, rtol=4e-6)
