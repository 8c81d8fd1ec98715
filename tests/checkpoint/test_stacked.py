"""Experts that a checkpoint has in one tensor: as numbers, and in MXFP4."""

import json

import engines
import families
import numpy as np
import pytest
import reference
from safetensors.numpy import load_file, save_file

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import check_tensors, convert
from tinychat.errors import CheckpointError, ConversionError
from tinychat.generate.sequence import logits_of_all

VARIANT = families.BY_NAME["gpt-oss"]
HIDDEN, INNER, EXPERTS = 96, 64, 6
GATE_UP = "model.layers.{}.mlp.experts.gate_up_proj"
DOWN = "model.layers.{}.mlp.experts.down_proj"


def draw_blocks(rng, rows, columns):
    """Return blocks and scales of all experts, and what they stand for."""
    blocks = rng.integers(0, 256, (EXPERTS, rows, columns // 32, 16), dtype=np.uint8)
    scales = rng.integers(118, 124, blocks.shape[:3], dtype=np.uint8)
    values = np.zeros((EXPERTS, rows, columns))
    for place in np.ndindex(*blocks.shape):
        for half in (0, 1):
            code = int(blocks[place]) >> 4 * half & 15
            exponent, fraction = code >> 1 & 3, code & 1
            size = fraction / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + fraction / 2)
            value = (-1) ** (code >> 3) * size * 2.0 ** (int(scales[place[:3]]) - 127)
            values[place[0], place[1], 32 * place[2] + 2 * place[3] + half] = value
    return blocks, scales, values


def write_packed(folder, rng):
    """Write a checkpoint whose experts are in MXFP4; return what those of the first layer stand for."""
    config = VARIANT.config | {"intermediate_size": INNER, "quantization_config": {"quant_method": "mxfp4"}}
    weights = families.stored(VARIANT, families.make_weights(families.Variant("gpt-oss-packed", config)))
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in ((GATE_UP, 2 * INNER, HIDDEN), (DOWN, HIDDEN, INNER)):
            del weights[name.format(layer)]
            blocks, scales, values = draw_blocks(rng, rows, columns)
            weights |= {f"{name.format(layer)}_blocks": blocks, f"{name.format(layer)}_scales": scales}
            found.setdefault(name, (blocks, scales, values))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    families.write_tokenizer(folder, config["vocab_size"])
    return found


def test_each_expert_is_read_under_its_name(tmp_path):
    checkpoint = open_checkpoint(families.write_checkpoint(VARIANT, tmp_path / "checkpoint"))
    check_tensors(checkpoint)
    weights = families.make_weights(VARIANT)
    name = "model.layers.1.mlp.experts.4.{}"
    down, gate_up = (name.format(f"{part}.weight") for part in ("down_proj", "gate_up_proj"))
    assert (checkpoint.tensors.read(down, 5, 9) == weights[down][5:9]).all()
    # Gates stand before what they let through.
    rows = np.concatenate([weights[gate_up][::2], weights[gate_up][1::2]])
    assert (checkpoint.tensors.read(gate_up) == rows).all()
    bias = name.format("gate_up_proj.bias")
    assert (checkpoint.tensors.read(bias)[:52] == weights[bias][::2]).all()


def test_packed_experts_are_numbers(tmp_path, rng):
    found = write_packed(tmp_path / "checkpoint", rng)
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    check_tensors(checkpoint)
    assert (checkpoint.tensors.read("model.layers.0.mlp.experts.3.down_proj.weight") == found[DOWN][2][3]).all()
    gate_up = checkpoint.tensors.read("model.layers.0.mlp.experts.5.gate_up_proj.weight", 60, 70)
    expected = np.concatenate([found[GATE_UP][2][5][::2], found[GATE_UP][2][5][1::2]])[60:70]
    assert (gate_up == expected).all()
    convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32")


def test_codes_of_packed_experts_pass_through(tmp_path, rng):
    write_packed(tmp_path / "checkpoint", rng)
    tensors = open_checkpoint(tmp_path / "checkpoint").tensors
    for part in ("down_proj", "gate_up_proj"):
        tensor = tensors[f"model.layers.1.mlp.experts.5.{part}.weight"]
        np.testing.assert_array_equal(reference.values_of_codes(tensor.read_codes(3, 40)), tensor.read(3, 40))
    folder = tinychat.convert(tmp_path / "checkpoint", tmp_path / "model", check=False)
    description = json.loads((folder / "tinychat.json").read_text())
    assert description["codes"]["kept"]["MXFP4"] == VARIANT.config["num_hidden_layers"] * EXPERTS * 2
    plain = convert(tmp_path / "checkpoint", tmp_path / "plain", quant="f32")
    sequence = engines.open_sequence(folder)
    ids = engines.draw_ids(sequence, 40)
    expected = logits_of_all(engines.open_sequence(plain, kv="f32"), ids)
    error = logits_of_all(sequence, ids) - expected
    assert error.std() < 0.02 * expected.std()


def test_blocks_that_do_not_fit_are_refused(tmp_path, rng):
    write_packed(tmp_path / "checkpoint", rng)
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    for changed, error in (({"num_local_experts": 7}, CheckpointError), ({"intermediate_size": 32}, CheckpointError)):
        (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(error):
            check_tensors(open_checkpoint(tmp_path / "checkpoint"))


def test_a_number_in_place_of_all_experts_is_refused(tmp_path, rng):
    write_packed(tmp_path / "checkpoint", rng)
    weights = load_file(tmp_path / "checkpoint" / "model.safetensors")
    weights = {name: data for name, data in weights.items() if not name.startswith(DOWN.format(0))}
    save_file(weights | {DOWN.format(0): np.array(1, np.float32)}, tmp_path / "checkpoint" / "model.safetensors")
    with pytest.raises(CheckpointError, match="has 0 experts"):
        check_tensors(open_checkpoint(tmp_path / "checkpoint"))


def test_exponents_beyond_all_numbers_are_refused(tmp_path, rng):
    write_packed(tmp_path / "checkpoint", rng)
    weights = load_file(tmp_path / "checkpoint" / "model.safetensors")
    weights[DOWN.format(0) + "_scales"][2, 3, 1] = 255
    weights[DOWN.format(0) + "_blocks"][2, 3, 1] = 7
    save_file(weights, tmp_path / "checkpoint" / "model.safetensors")
    with pytest.raises(ConversionError, match=r"experts\.2\.down_proj"):
        convert(tmp_path / "checkpoint", tmp_path / "model", quant="f32")


def test_experts_with_columns_first_are_those_with_rows_first(tmp_path):
    """Published files of Qwen3-VL have them so, and files that transformers writes have not."""
    variant = families.BY_NAME["qwen3-moe"]
    plain, turned = (families.write_checkpoint(variant, tmp_path / name) for name in ("plain", "turned"))
    weights = families.make_weights(variant)
    stem, count = "model.layers.{}.mlp.experts.", variant.config["num_experts"]
    for layer in range(variant.config["num_hidden_layers"]):
        own = {
            part: np.stack([weights.pop(f"{stem.format(layer)}{e}.{part}_proj.weight").T for e in range(count)])
            for part in ("gate", "up", "down")
        }
        weights[f"{stem.format(layer)}gate_up_proj"] = np.concatenate([own["gate"], own["up"]], axis=2)
        weights[f"{stem.format(layer)}down_proj"] = own["down"]
    for file in turned.glob("*.safetensors*"):
        file.unlink()
    named = {name.replace("model.", "model.language_model.", 1): np.ascontiguousarray(w) for name, w in weights.items()}
    save_file(named, turned / "model.safetensors")
    text = json.loads((plain / "config.json").read_text()) | {"model_type": "qwen3_vl_moe_text"}
    del text["architectures"]
    wrapper = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "tie_word_embeddings": True}
    (turned / "config.json").write_text(json.dumps(wrapper | {"text_config": text}))
    expected, found = open_checkpoint(plain), open_checkpoint(turned)
    check_tensors(found)
    for name in families.make_weights(variant):
        np.testing.assert_array_equal(found.tensors.read(name), expected.tensors.read(name))


@pytest.mark.live
def test_packed_experts_equal_transformers(rng):
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    torch = pytest.importorskip("torch")
    blocks, scales, values = draw_blocks(rng, 48, 64)
    theirs = mxfp4.convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32)
    assert (theirs.numpy().transpose(0, 2, 1) == values).all()


@pytest.mark.parametrize("turn", [lambda v: v.transpose(0, 2, 1), lambda v: v.reshape(len(v), -1)])
def test_a_convolution_of_another_layout_is_refused(tmp_path, turn):
    folder = families.write_checkpoint(families.BY_NAME["zaya-plain"], tmp_path / "checkpoint")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.qkv_proj.conv_qk_grouped.weight"
    weights[name] = np.ascontiguousarray(turn(weights[name]))
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"conv_qk_grouped.weight has shape .*, expected \[256, 32, 2\]"):
        open_checkpoint(folder)
