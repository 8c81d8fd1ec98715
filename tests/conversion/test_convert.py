"""From checkpoint to model folder: what comes out means what went in, and a failure leaves nothing."""

import json
import os
import time

import families
import numpy as np
import pytest
import reference
from safetensors.numpy import load_file, save_file
from text.tiktoken_files import ranks_of, write_tiktoken
from text.tokenizer_folders import write_tokenizer

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.convert import add_quality_report, convert, write_model_folder
from tinychat.conversion.float_pass import FloatPass
from tinychat.conversion.gptq import Calibrated
from tinychat.conversion.pack import pack_linear
from tinychat.conversion.source import Source
from tinychat.conversion.unfinished import WorkFolder
from tinychat.errors import CheckpointError, ConversionError, SettingError
from tinychat.models.architectures import linears, norms
from tinychat.models.folder import open_model_folder
from tinychat.models.layout import Quantization
from tinychat.text.loading import load_tokenizer

METHODS = ("int4", "int8", "f32")
methods = pytest.mark.parametrize("method", METHODS)
# float32 with every bias; bfloat16 in shards, tied; float16; norms of queries and keys.
CHECKPOINTS = ("llama-all-biases", "llama2-gqa", "smollm2", "qwen2-tied", "qwen3")


def checkpoint_of(name, tmp_path):
    return families.write_checkpoint(families.BY_NAME[name], tmp_path / "checkpoint")


def change_weights(checkpoint, change):
    """Let `change` edit the dict of tensors of an unsharded checkpoint."""
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors")


def rows_of(folder, name, layer):
    """Return one layer of a linear as float64, padding included."""
    tensors, method = folder.tensors, folder.quantization.dtype

    def part(kind):
        array = tensors[f"{name}.{kind}"]
        return array if layer is None else array[layer]

    if method == "f32":
        return reference.unpack_f32(part("values"))
    codes = [part("packed"), part("scales"), part("row_scales")]
    if folder.quantization.dtype_of(name) == "int4":
        return reference.dequantize_int4(*codes, part("table"))
    return reference.dequantize_int8(*codes)


def assert_linear(folder, linear, weights, allowed):
    zero_table = 0 not in folder.tensors.get(f"{linear.name}.table", [0])
    for layer in [None] if linear.layers is None else range(linear.layers):
        names = [source.format(layer) for source in linear.sources]
        expected = np.concatenate([weights[f"{name}.weight"] for name in names]).astype(np.float64)
        got = rows_of(folder, linear.name, layer)
        N, K = expected.shape
        assert not got[N:].any()
        # A code of 0 need not stand for 0: columns beyond K meet inputs of 0.
        assert zero_table or not got[:, K:].any()
        error = np.sqrt(np.mean((got[:N, :K] - expected) ** 2) / np.mean(expected**2))
        assert error <= allowed, f"{linear.name} is off by {error:.3f}"
        if linear.bias:
            bias = np.concatenate([weights[f"{name}.bias"] for name in names]).astype(np.float32)
            np.testing.assert_array_equal(folder.tensors[f"{linear.name}.bias"][layer][:N], bias)


@methods
@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("group_size", [32, 128])
def test_every_tensor_means_what_it_meant(method, name, group_size, tmp_path):
    checkpoint = checkpoint_of(name, tmp_path)
    folder = open_model_folder(convert(checkpoint, tmp_path / "model", method, group_size))
    weights = families.make_weights(families.BY_NAME[name])
    for linear in linears(folder.config):
        # Uniform weights lose more than trained ones: half a step of 16 is 1/16/sqrt(3) of their peak.
        assert_linear(folder, linear, weights, {"int4": 0.08, "int8": 0.01, "f32": 0}[method])
    for norm in norms(folder.config):
        for layer in range(norm.layers or 1):
            got = np.atleast_2d(folder.tensors[norm.name])[layer]
            expected = weights[f"{norm.source.format(layer)}.weight"].astype(np.float32)
            np.testing.assert_array_equal(got[: norm.size], expected)
            assert not got[norm.size :].any()


def test_the_folder_describes_itself(tmp_path):
    checkpoint = checkpoint_of("qwen3", tmp_path)
    folder = convert(checkpoint, tmp_path / "model", "int4", 64, source="someone/some-model")
    description = json.loads((folder / "tinychat.json").read_text())
    assert description["format"] == 2
    assert description["quantization"] == {"method": "int4", "group_size": 64, "int8": [], "frequent": 0}
    assert description["source"] == "someone/some-model"
    errors = description["relative_rms_error"]
    assert errors.keys() == {"embed_tokens", "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"}
    assert all(0.02 < error < 0.1 for error in errors.values())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (checkpoint / name).read_bytes()
    assert not (checkpoint / "tinychat.json").exists()


def test_the_source_is_the_checkpoints_name_when_not_given(tmp_path):
    folder = convert(checkpoint_of("qwen3", tmp_path), tmp_path / "model")
    assert json.loads((folder / "tinychat.json").read_text())["source"] == "checkpoint"


@methods
def test_any_safetensors_reader_can_read_it(method, tmp_path):
    folder = open_model_folder(convert(checkpoint_of("smollm2", tmp_path), tmp_path / "model", method))
    tensors = load_file(folder.path / "model.safetensors")
    assert tensors.keys() == folder.tensors.keys()
    for name, tensor in tensors.items():
        assert tensor.shape == folder.tensors[name].shape
        assert tensor.tobytes() == folder.tensors[name].tobytes()


@methods
def test_the_same_checkpoint_gives_the_same_bytes(method, tmp_path, monkeypatch):
    checkpoint = checkpoint_of("qwen2-tied", tmp_path)
    first = convert(checkpoint, tmp_path / "first", method)
    monkeypatch.setattr("tinychat.conversion.cores.THREADS", 5)
    second = convert(checkpoint, tmp_path / "second", method)
    files = sorted(path.name for path in first.iterdir())
    assert files == sorted(path.name for path in second.iterdir())
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@methods
def test_progress_counts_to_the_end(method, tmp_path):
    seen = []
    checkpoint = checkpoint_of("llama-all-biases", tmp_path)
    folder = convert(checkpoint, tmp_path / "model", method, progress=lambda done, total: seen.append((done, total)))
    totals = {total for _, total in seen}
    assert len(totals) == 1
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(t.nbytes for t in open_model_folder(folder).tensors.values())


def raising(error, steps):
    """Return a callback of progress that raises an error at the step of this number."""

    def interrupt(done, total):
        nonlocal steps
        steps -= 1
        if not steps:
            raise error

    return interrupt


@pytest.mark.parametrize("error", [MemoryError, OSError("disk full")])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_conversion_that_fails_leaves_nothing(error, steps, tmp_path):
    checkpoint = checkpoint_of("qwen3", tmp_path)
    expected = ConversionError if isinstance(error, OSError) else error
    with pytest.raises(expected):
        convert(checkpoint, tmp_path / "out" / "model", progress=raising(error, steps))
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_stopped_conversion_goes_on_from_what_is_finished(error, steps, tmp_path, monkeypatch):
    packed = []

    def counted_pack(*given):
        packed.append(given)
        return pack_linear(*given)

    monkeypatch.setattr("tinychat.conversion.convert.pack_linear", counted_pack)
    checkpoint = checkpoint_of("qwen3", tmp_path)
    whole = convert(checkpoint, tmp_path / "whole")
    count = len(packed)
    with pytest.raises(error):
        convert(checkpoint, tmp_path / "out" / "model", progress=raising(error, steps))
    (left,) = (tmp_path / "out").iterdir()
    assert left.name.startswith(".model.converting-")
    packed.clear()
    folder = convert(checkpoint, tmp_path / "out" / "model")
    assert len(packed) == count - steps
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert [*(tmp_path / "out").iterdir()] == [folder]


def test_a_conversion_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    def leave(name, age):
        (tmp_path / name).mkdir()
        for path in (tmp_path / name / "model.safetensors", tmp_path / name):
            path.touch()
            os.utime(path, (time.time() - age,) * 2)

    day = 24 * 3600
    leave(".model.converting-old45678", 2 * day)
    kept = {".model.converting-new45678": day / 2, ".model.original": 9 * day, ".other.converting-old45678": 9 * day}
    for name, age in kept.items():
        leave(name, age)
    leave(".model.converting-written1", 2 * day)
    os.utime(tmp_path / ".model.converting-written1" / "model.safetensors")
    convert(checkpoint_of("qwen3", tmp_path), tmp_path / "model")
    expected = {*kept, ".model.converting-written1", "model", "checkpoint"}
    assert {path.name for path in tmp_path.iterdir()} == expected


@pytest.mark.parametrize("what", ["file", "folder", "dangling link"])
def test_an_existing_target_is_left_alone(what, tmp_path):
    target = tmp_path / "model"
    {
        "file": lambda: target.write_text("mine"),
        "folder": target.mkdir,
        "dangling link": lambda: target.symlink_to(tmp_path / "nowhere"),
    }[what]()
    checkpoint = checkpoint_of("qwen3", tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConversionError, match=r"model exists already: remove it, or choose another target$"):
        convert(checkpoint, target)
    assert sorted(tmp_path.iterdir()) == before
    assert what != "file" or target.read_text() == "mine"


def test_a_target_that_another_program_made_meanwhile_is_kept(tmp_path):
    checkpoint, target = checkpoint_of("smollm2", tmp_path), tmp_path / "model"

    def make(done, total):
        target.mkdir(exist_ok=True)
        (target / "file").write_text("of another")

    with pytest.raises(ConversionError, match="model exists now: another program has made it"):
        convert(checkpoint, target, progress=make)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".model")]


def test_a_target_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConversionError, match=r"cannot be written .*: choose another target$"):
        convert(checkpoint_of("qwen3", tmp_path), tmp_path / "file" / "model")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_target_without_permission_cannot_be_written(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(ConversionError, match="cannot be written"):
        convert(checkpoint_of("qwen3", tmp_path), locked / "model")


@methods
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.self_attn.k_proj.bias",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(method, name, bad, tmp_path):
    checkpoint = checkpoint_of("qwen2-window", tmp_path)

    def spoil(tensors):
        tensors[name].flat[-1] = bad

    change_weights(checkpoint, spoil)
    with pytest.raises(ConversionError, match=r"not finite.*download .* again, or keep the model in f32") as caught:
        convert(checkpoint, tmp_path / "model", method)
    assert name in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.2.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.bias"]
)
def test_a_missing_tensor_is_named(name, tmp_path):
    checkpoint = checkpoint_of("qwen2-window", tmp_path)
    change_weights(checkpoint, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"no tensor {name}: .*download it again"):
        convert(checkpoint, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_tensor_of_another_shape_is_named(tmp_path):
    checkpoint = checkpoint_of("qwen2-window", tmp_path)

    def cut(tensors):
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()

    change_weights(checkpoint, cut)
    with pytest.raises(
        CheckpointError,
        match=r"lm_head\.weight has shape \[516, 96\], config\.json asks for \[517, 96\]: .*download both again",
    ):
        convert(checkpoint, tmp_path / "model")


@pytest.mark.parametrize(("quant", "group_size"), [("int3", 32), ("int4", 48), ("int4", 0)])
def test_unknown_settings_are_refused_before_anything_is_read(quant, group_size, tmp_path):
    with pytest.raises(SettingError):
        convert(tmp_path / "nothing here", tmp_path / "model", quant, group_size)
    assert list(tmp_path.iterdir()) == []


TEXTS = [[1, 5, 9, 200, 31, 7] * 8, [3, 4, 77, 12] * 5]


@pytest.mark.parametrize("method", ["importance", "gptq"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_calibrated_codes_mean_what_the_weights_meant(method, name, tmp_path):
    checkpoint = checkpoint_of(name, tmp_path)
    folder = open_model_folder(
        write_model_folder(checkpoint, tmp_path / "model", Quantization(), algorithm=method, texts=TEXTS)
    )
    weights = families.make_weights(families.BY_NAME[name])
    for linear in linears(folder.config):
        # What a code loses may be larger where the texts ask for it.
        assert_linear(folder, linear, weights, 0.2)
    description = json.loads((folder.path / "tinychat.json").read_text())
    assert description["coding"] == method
    assert set(description["relative_rms_error"]) == {
        f"{linear.name} {layer}"
        for linear in linears(folder.config)
        if linear.layers
        for layer in range(folder.config.num_hidden_layers)
    }


@pytest.mark.parametrize("feedback", [True, False])
def test_layers_that_run_again_have_the_codes_that_were_chosen(feedback, tmp_path):
    checkpoint = open_checkpoint(checkpoint_of("dory-three", tmp_path))
    work = WorkFolder(tmp_path)
    quantizer = Calibrated(checkpoint, Quantization("int4", 32, ("o_proj",)), feedback, TEXTS, work)
    made = {(name, shard): arrays for name, shard, arrays, _ in quantizer.linears(lambda name, shard: None)}
    source = Source(checkpoint)

    def decoded(name, shard, inputs, residual):
        if name == "o_proj":
            return source.linear(name, shard, inputs, residual)
        arrays, shape = made[name, shard], (sum(source.layout(name).rows), source.layout(name).columns)
        parts = [arrays[part] for part in ("packed", "scales", "row_scales", "table")]
        outputs = inputs @ reference.dequantize_int4(*parts, shape=shape).astype(np.float32).T
        bias = source.bias(name, shard)
        return outputs if bias is None else outputs + bias

    float_pass = FloatPass(source, TEXTS)
    hidden = float_pass.embed()
    for index in range(len(checkpoint.config.layer_runs)):
        hidden = float_pass.run_layer(index, hidden, decoded)
    assert [*made] == [*dict.fromkeys(made)] and ("down_proj", 3) in made
    assert np.abs(work.read_arrays("hidden_states.npz")["hidden"] - hidden).max() < 1e-4


def test_calibrated_models_may_keep_a_linear_in_int8(tmp_path):
    checkpoint = checkpoint_of("qwen3", tmp_path)
    stored = Quantization("int4", 32, ("lm_head", "o_proj"))
    made = write_model_folder(checkpoint, tmp_path / "model", stored, algorithm="gptq", texts=TEXTS)
    folder = open_model_folder(made)
    assert folder.quantization.int8 == ("lm_head", "o_proj")
    weights = families.make_weights(families.BY_NAME["qwen3"])
    for linear in linears(folder.config):
        assert_linear(folder, linear, weights, 0.01 if linear.name in ("lm_head", "o_proj") else 0.2)


def test_calibrated_models_may_keep_frequent_rows_in_int8(tmp_path):
    checkpoint = checkpoint_of("smollm2", tmp_path)
    stored = Quantization("int4", 32, (), 32)
    folder = open_model_folder(
        write_model_folder(checkpoint, tmp_path / "model", stored, algorithm="gptq", texts=TEXTS)
    )
    rows = families.make_weights(families.BY_NAME["smollm2"])["model.embed_tokens.weight"].astype(np.float64)
    tensors = folder.tensors
    first = reference.dequantize_int8(
        *(tensors[f"frequent_tokens.{part}"] for part in ("packed", "scales", "row_scales"))
    )
    rest = reference.dequantize_int4(
        *(tensors[f"embed_tokens.{p}"] for p in ("packed", "scales", "row_scales", "table"))
    )
    for got, expected, allowed in ((first, rows[:32], 0.01), (rest, rows[32:], 0.2)):
        N, K = expected.shape
        assert np.sqrt(np.mean((got[:N, :K] - expected) ** 2) / np.mean(expected**2)) <= allowed


def test_a_quality_report_names_the_largest_errors(tmp_path):
    made = write_model_folder(checkpoint_of("qwen3", tmp_path), tmp_path / "model", Quantization())
    before = json.loads((made / "tinychat.json").read_text())
    add_quality_report(made, {"texts": {}})
    after = json.loads((made / "tinychat.json").read_text())
    errors = before["relative_rms_error"]
    worst = sorted(errors, key=errors.get, reverse=True)[:4]
    assert after == before | {"certificate": {"texts": {}, "worst": {name: errors[name] for name in worst}}}


def test_inputs_that_overflow_are_told(tmp_path):
    checkpoint = checkpoint_of("qwen2-window", tmp_path)

    def enlarge(tensors):
        tensors["model.layers.0.input_layernorm.weight"] = np.full_like(
            tensors["model.layers.0.input_layernorm.weight"], 3e38
        )

    change_weights(checkpoint, enlarge)
    with pytest.raises(ConversionError, match="inputs of qkv_proj are not finite"):
        write_model_folder(checkpoint, tmp_path / "model", Quantization(), algorithm="gptq", texts=TEXTS)
    assert not (tmp_path / "model").exists()


def test_a_tiktoken_file_becomes_a_tokenizer(tmp_path):
    checkpoint = checkpoint_of("smollm2", tmp_path)
    write_tiktoken(checkpoint, ranks_of("he", "ll", "hello"))
    for name in ("tokenizer.json", "tokenizer.model"):
        (checkpoint / name).unlink(missing_ok=True)
    made = convert(checkpoint, tmp_path / "model")
    assert (made / "tokenizer.json").is_file()
    assert not (made / "tiktoken.model").exists()
    texts = ["hello 你好 hell", "<|im_end|>"]
    ours, theirs = load_tokenizer(made), load_tokenizer(checkpoint)
    assert [ours.encode(text) for text in texts] == [theirs.encode(text) for text in texts]
    assert ours.special_tokens == theirs.special_tokens


def test_a_tiktoken_file_beside_a_tokenizer_is_left_out(tmp_path):
    checkpoint = checkpoint_of("smollm2", tmp_path)
    write_tokenizer(checkpoint, "byte-level", ["<s>", "</s>"])
    (checkpoint / "tiktoken.model").write_bytes(b"damaged")
    made = convert(checkpoint, tmp_path / "model")
    assert (made / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    assert not (made / "tiktoken.model").exists()
