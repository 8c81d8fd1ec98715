"""Adapters: weights merged by the formula, and as PEFT merges them; what does not fit is refused."""

import json

import families
import gguf_files
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from variants.common import Variant

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.checkpoint.folder import folder_of
from tinychat.errors import CheckpointError, StoreError, UnsupportedModelError

VARIANT = Variant("base", families.BY_NAME["qwen3"].config)
Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
EMBED = "model.embed_tokens"
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 10}


@pytest.fixture
def base(tmp_path):
    return families.write_checkpoint(VARIANT, tmp_path / "base")


def weight_of(base, name):
    return load_file(base / "model.safetensors")[f"{name}.weight"].astype(np.float64)


def write(folder, tensors, config=CONFIG, name="adapter_model.safetensors"):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({key: np.ascontiguousarray(values, np.float32) for key, values in tensors.items()}, folder / name)
    return folder


def matrices(rng, shape, rank=4):
    rows, columns = shape
    return rng.standard_normal((rank, columns)) / 9, rng.standard_normal((rows, rank)) / 9


def merged(base, adapter, name):
    with folder_of(base, adapter) as folder:
        return open_checkpoint(folder).tensors.read(f"{name}.weight")


def close(found, expected):
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("ending", ["", ".default"])
@pytest.mark.parametrize(
    ("config", "scale"),
    [({}, 2.5), ({"use_rslora": True}, 5.0), ({"alpha_pattern": {"q_proj": 2, "k_proj": 3}}, 0.5)],
)
def test_products_are_added(base, tmp_path, rng, config, scale, ending):
    weight = weight_of(base, Q)
    a, b = matrices(rng, weight.shape)
    names = [f"base_model.model.{Q}.lora_{part}{ending}.weight" for part in "AB"]
    adapter = write(tmp_path / "adapter", dict(zip(names, (a, b))), CONFIG | config)
    close(merged(base, adapter, Q), weight + scale * b @ a)
    np.testing.assert_array_equal(merged(base, adapter, DOWN), weight_of(base, DOWN))


def test_lengths_of_rows(base, tmp_path, rng):
    weight = weight_of(base, Q)
    a, b = matrices(rng, weight.shape)
    lengths = 1 + rng.random(len(weight))
    names = {f"base_model.model.{Q}.lora_A.weight": a, f"base_model.model.{Q}.lora_B.weight": b}
    names[f"base_model.model.{Q}.lora_magnitude_vector"] = lengths
    rows = weight + 2.5 * b @ a
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True) * lengths[:, None]
    close(merged(base, write(tmp_path / "adapter", names), Q), expected)


def test_embeddings_and_tensors_that_replace_others(base, tmp_path, rng):
    weight, norm = weight_of(base, EMBED), rng.standard_normal(VARIANT.config["hidden_size"])
    a, b = rng.standard_normal((4, len(weight))), rng.standard_normal((weight.shape[1], 4))
    names = {f"base_model.model.{EMBED}.lora_embedding_{part}": values for part, values in zip("AB", (a, b))}
    names["base_model.model.model.norm.weight"] = norm
    adapter = write(tmp_path / "adapter", names)
    np.testing.assert_allclose(merged(base, adapter, EMBED), weight + 2.5 * (b @ a).T, rtol=1e-5, atol=1e-5)
    close(merged(base, adapter, "model.norm"), norm.astype(np.float32))


def test_adapters_of_mlx(base, tmp_path, rng):
    weight = weight_of(base, DOWN)
    a, b = matrices(rng, weight.shape)
    config = {"fine_tune_type": "lora", "lora_parameters": {"rank": 4, "scale": 20.0}}
    tensors = {f"{DOWN}.lora_a": a.T, f"{DOWN}.lora_b": b.T}
    adapter = write(tmp_path / "adapter", tensors, config, "adapters.safetensors")
    close(merged(base, adapter, DOWN), weight + 20 * b @ a)


def test_a_conversion_with_an_adapter(base, tmp_path, rng):
    weight = weight_of(base, Q)
    a, b = matrices(rng, weight.shape)
    names = [f"base_model.model.{Q}.lora_{part}.weight" for part in "AB"]
    adapter = write(tmp_path / "adapter", dict(zip(names, (a, b))))
    model = tinychat.convert(base, tmp_path / "model", quant="f32", adapter=adapter)
    assert json.loads((model / "tinychat.json").read_text())["source"] == "base-adapter"
    assert not [file.name for file in model.iterdir() if "adapter" in file.name]
    tensors = load_file(base / "model.safetensors") | {f"{Q}.weight": (weight + 2.5 * b @ a).astype(np.float32)}
    whole = families.write_checkpoint(VARIANT, tmp_path / "whole")
    save_file(tensors, whole / "model.safetensors")
    expected = tinychat.convert(whole, tmp_path / "expected", quant="f32")
    ids = families.make_ids(VARIANT)
    logits = [tinychat.load(folder, context=256).logits(ids) for folder in (model, expected)]
    assert np.max(np.abs(logits[0] - logits[1])) < 1e-4 * np.std(logits[1])
    plain = tinychat.load(tinychat.convert(base, tmp_path / "plain", quant="f32"), context=256).logits(ids)
    assert np.max(np.abs(plain - logits[1])) > 0.1 * np.std(plain)


@pytest.mark.parametrize(
    ("tensors", "config", "error", "message"),
    [
        ({f"{Q}.lora_A.weight": (4, 96)}, {}, CheckpointError, r"half of what changes model.layers.1.self_attn.q_proj"),
        ({"model.layers.7.mlp.up_proj.weight": (3, 96)}, {}, CheckpointError, "which the checkpoint lacks"),
        ({f"{Q}.lora_A.weight": (4, 80), f"{Q}.lora_B.weight": (160, 4)}, {}, CheckpointError, "does not fit"),
        ({f"{Q}.lora_A.weight": (4, 96), f"{Q}.lora_B.weight": (160, 3)}, {}, CheckpointError, "does not fit"),
        ({f"{Q}.lora_B.bias": (160,)}, {}, UnsupportedModelError, "lora_B.bias of an adapter is not supported"),
        ({}, {"peft_type": "IA3"}, UnsupportedModelError, "an adapter of the kind 'IA3' is not supported"),
        ({}, {"use_qalora": True}, UnsupportedModelError, "use_qalora is not supported"),
        ({}, {"layer_replication": [[0, 2]]}, UnsupportedModelError, "layer_replication is not supported"),
        ({}, {"init_lora_weights": "pissa"}, UnsupportedModelError, "init_lora_weights 'pissa' is not supported"),
        ({f"{Q}.lora_A.weight": (0, 96), f"{Q}.lora_B.weight": (160, 0)}, {}, CheckpointError, "no pair of matrices"),
        ({f"{Q}.lora_A.weight": (), f"{Q}.lora_B.weight": (160,)}, {}, CheckpointError, "no pair of matrices"),
        ({}, {"alpha_pattern": {"(a|b)+": 2}}, UnsupportedModelError, "alpha_pattern"),
        ({}, {"lora_alpha": "much"}, CheckpointError, "lora_alpha"),
    ],
)
def test_what_does_not_fit_is_refused(base, tmp_path, tensors, config, error, message):
    shapes = tensors or {f"{Q}.lora_A.weight": (4, 96), f"{Q}.lora_B.weight": (160, 4)}
    names = {f"base_model.model.{name}": np.zeros(shape) for name, shape in shapes.items()}
    adapter = write(tmp_path / "adapter", names, CONFIG | config)
    with pytest.raises(error, match=message) as raised:
        tinychat.convert(base, tmp_path / "model", quant="f32", adapter=adapter)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "model").exists()


def test_an_adapter_of_a_part_of_the_model(base, tmp_path, rng):
    weight = weight_of(base, Q)
    a, b = matrices(rng, weight.shape)
    names = [f"base_model.model.{Q.removeprefix('model.')}.lora_{part}.weight" for part in "AB"]
    close(merged(base, write(tmp_path / "adapter", dict(zip(names, (a, b)))), Q), weight + 2.5 * b @ a)


def test_an_adapter_that_changes_nothing(base, tmp_path):
    with pytest.raises(CheckpointError, match="the adapter changes nothing"):
        tinychat.convert(base, tmp_path / "model", adapter=write(tmp_path / "adapter", {}))


def test_links_out_of_the_checkpoint_are_not_followed(base, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (base / "chat_template.jinja").symlink_to(tmp_path / "secret")
    adapter = write(tmp_path / "adapter", {"base_model.model.model.norm.weight": np.ones(96)})
    with pytest.raises(CheckpointError, match="is a link to a file outside of the checkpoint"):
        tinychat.convert(base, tmp_path / "model", adapter=adapter)


@pytest.mark.parametrize(("name", "module"), [("qwen3", Q), ("cohere", "model.layers.1.self_attn.v_proj")])
def test_gguf_files(name, module, tmp_path, rng):
    variant = Variant("base", families.BY_NAME[name].config)
    base = families.write_checkpoint(variant, tmp_path / "base")
    file = gguf_files.write_variant(variant, tmp_path / "base.gguf")
    weight = weight_of(base, module)
    a, b = matrices(rng, weight.shape)
    names = [f"base_model.model.{module}.lora_{part}.weight" for part in "AB"]
    adapter = write(tmp_path / "adapter", dict(zip(names, (a, b))))
    models = [
        tinychat.convert(source, tmp_path / f"model{number}", quant="f32", adapter=adapter)
        for number, source in enumerate((base, file))
    ]
    ids = families.make_ids(variant)
    logits = [tinychat.load(model, context=256).logits(ids) for model in models]
    assert np.max(np.abs(logits[0] - logits[1])) < 1e-3 * np.std(logits[0])


def test_rows_in_the_order_of_a_gguf_file(tmp_path, rng):
    variant = Variant("base", families.BY_NAME["cohere"].config)
    file = gguf_files.write_variant(variant, tmp_path / "base.gguf")
    a, b = matrices(rng, (variant.config["hidden_size"],) * 2)
    names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB"]
    with pytest.raises(UnsupportedModelError, match="merge it with the original checkpoint"):
        tinychat.convert(file, tmp_path / "model", adapter=write(tmp_path / "adapter", dict(zip(names, (a, b)))))


def test_folders_that_hold_no_adapter(base, tmp_path):
    for adapter in (base, tmp_path / "none"):
        with pytest.raises(CheckpointError, match=r"is not an adapter: expected a folder with adapter_config\.json"):
            tinychat.convert(base, tmp_path / "model", adapter=adapter)
    adapter = write(tmp_path / "adapter", {"base_model.model.model.norm.weight": np.ones(96)})
    with pytest.raises(CheckpointError, match=r"is an adapter.*tinychat convert BASE DST --adapter"):
        tinychat.convert(adapter, tmp_path / "model")
    with pytest.raises(StoreError, match="adapter is an adapter, which changes another model"):
        tinychat.load(adapter)


@pytest.mark.live
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dora": True},
        {"use_rslora": True, "alpha_pattern": {"model.layers.1.self_attn.v_proj": 90, "v_proj": 7}},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {"modules_to_save": ["lm_head", "norm"]},
    ],
)
def test_logits_are_those_that_peft_merges(base, tmp_path, options):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    options = {"target_modules": ["q_proj", "v_proj", "down_proj"], **options}
    config = peft.LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **options)
    changed = peft.get_peft_model(theirs, config)
    changed.save_pretrained(tmp_path / "adapter")
    ids = families.make_ids(VARIANT)
    with torch.no_grad():
        expected = changed.eval()(torch.tensor([ids])).logits[0].numpy()
    model = tinychat.convert(base, tmp_path / "model", quant="f32", adapter=tmp_path / "adapter")
    logits = tinychat.load(model, context=256, kv="f32").logits(ids)
    assert np.max(np.abs(logits - expected)) < 2e-3 * np.std(expected)
