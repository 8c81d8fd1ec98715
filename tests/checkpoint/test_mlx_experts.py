"""Experts as mlx stacks them, under its names: quantized, by several modes, and not."""

import json
import re

import families
import gguf_files
import numpy as np
import packed_checkpoints
import pytest
import reference
from checkpoint import test_small_floats
from safetensors.numpy import load_file, save_file

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors
from tinychat.errors import CheckpointError

# Names of mlx for those of the checkpoint.
RENAMED = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
AFFINE = {"group_size": 32, "bits": 4}
MODES = {
    "plain": None,
    "affine": AFFINE,
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
}


def make(rng, mode, N, K):
    """Return the tensors of a weight in a mode, and its values."""
    if mode == "plain":
        values = rng.standard_normal((N, K)).astype(np.float32)
        return {"weight": values}, values.astype(np.float64)
    if mode == "affine":
        return packed_checkpoints.mlx(rng, N, K, 32)
    return test_small_floats.mlx(rng, N, K, mode)


def write_checkpoint(variant, mode, folder, rng):
    """Write a checkpoint whose experts are stacked; return their values by the checkpoint's names."""
    families.write_checkpoint(families.Variant(variant.name, variant.config), folder)
    config = json.loads((folder / "config.json").read_text())
    if MODES[mode]:
        (folder / "config.json").write_text(json.dumps(config | {"quantization": MODES[mode]}))
    tensors, values, stacks = load_file(folder / "model.safetensors"), {}, {}
    for name in sorted(name for name in tensors if ".experts." in name):
        stem, expert, part, end = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.(\w+)", name).groups()
        parts, values[name] = make(rng, mode, *tensors.pop(name).shape)
        assert end == "weight"
        for key, data in parts.items():
            stacks.setdefault(f"{stem}.switch_mlp.{RENAMED.get(part, part)}.{key}", {})[int(expert)] = data
    tensors |= {name: np.stack([found[i] for i in range(len(found))]) for name, found in stacks.items()}
    save_file(tensors, folder / "model.safetensors")
    return values


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["qwen3-moe", "mixtral"])
def test_experts_are_those_of_the_formula(family, mode, tmp_path, rng):
    sizes = {"moe_intermediate_size": 64} if family == "qwen3-moe" else {"intermediate_size": 64}
    variant = gguf_files.like(family, hidden_size=96, **sizes)
    values = write_checkpoint(variant, mode, tmp_path / "checkpoint", rng)
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    check_tensors(checkpoint)
    assert values
    for name, expected in values.items():
        tensor = checkpoint.tensors[name]
        np.testing.assert_allclose(tensor.read(3, 40), expected[3:40], rtol=1e-6)
        assert (tensor.form is None) == (mode in ("plain", "mxfp8"))
        if tensor.form is not None:
            np.testing.assert_array_equal(reference.values_of_codes(tensor.read_codes(3, 40)), tensor.read(3, 40))


def test_gates_and_inputs_of_gpt_oss_are_apart(tmp_path, rng):
    variant = gguf_files.like("gpt-oss", hidden_size=128, intermediate_size=64)
    folder, E, D, F = tmp_path / "checkpoint", 6, 128, 64
    families.write_checkpoint(families.Variant(variant.name, variant.config), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization": MODES["mxfp4"]}))
    tensors = {n: data for n, data in load_file(folder / "model.safetensors").items() if ".experts." not in n}
    values = {}
    for layer in range(config["num_hidden_layers"]):
        for part, N, K in (("gate_proj", F, D), ("up_proj", F, D), ("down_proj", D, F)):
            stem = f"model.layers.{layer}.mlp.experts.{part}"
            made = [make(rng, "mxfp4", N, K) for _ in range(E)]
            tensors |= {f"{stem}.{key}": np.stack([parts[key] for parts, _ in made]) for key in ("weight", "scales")}
            tensors[f"{stem}.bias"] = rng.standard_normal((E, N)).astype(np.float32)
            values[stem] = np.stack([each for _, each in made])
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    check_tensors(checkpoint)
    for layer, expert in ((0, 5), (2, 0)):
        stem = f"model.layers.{layer}.mlp.experts"
        both = checkpoint.tensors[f"{stem}.{expert}.gate_up_proj.weight"]
        # Gates stand before what they let through.
        expected = np.concatenate([values[f"{stem}.gate_proj"][expert], values[f"{stem}.up_proj"][expert]])
        np.testing.assert_allclose(both.read(0, 2 * F), expected, rtol=1e-6)
        np.testing.assert_array_equal(reference.values_of_codes(both.read_codes(60, 70)), both.read(60, 70))
        bias = [tensors[f"{stem}.{part}.bias"][expert] for part in ("gate_proj", "up_proj")]
        found = checkpoint.tensors.read(f"{stem}.{expert}.gate_up_proj.bias")
        np.testing.assert_array_equal(found, np.concatenate(bias))
        down = checkpoint.tensors[f"{stem}.{expert}.down_proj.weight"]
        np.testing.assert_allclose(down.read(0, D), values[f"{stem}.down_proj"][expert], rtol=1e-6)


def test_fewer_experts_than_the_configuration_has_are_refused(tmp_path, rng):
    variant = gguf_files.like("qwen3-moe", hidden_size=96, moe_intermediate_size=64)
    write_checkpoint(variant, "affine", tmp_path / "checkpoint", rng)
    file = tmp_path / "checkpoint" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.switch_mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name][:5]}, file)
    with pytest.raises(CheckpointError, match=r"switch_mlp\.up_proj\.weight has 5 experts"):
        check_tensors(open_checkpoint(tmp_path / "checkpoint"))
