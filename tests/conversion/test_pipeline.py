"""A conversion as a whole: texts to look at the model with, bits to keep to, a certificate that is true."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import families
import numpy as np
import pytest

import tinychat
from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.conversion.calibration import TEXT_TOKENS, cut_texts, write_texts
from tinychat.conversion.pipeline import Phases, Recipe, disk_needed, fitted, memory_needed, weight_count
from tinychat.conversion.quality_report import examine
from tinychat.conversion.source import Source
from tinychat.errors import ConversionError, FieldError, SettingError, TextError
from tinychat.generate.perplexity import measure
from tinychat.models.architectures import parse_config
from tinychat.models.layout import Quantization, tensor_specs
from tinychat.models.shapes import config_of
from tinychat.store.local import list_models, path_for, quality_lines

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
SMOLLM2 = Path(os.environ.get("TINYCHAT_SMOLLM2", "no checkpoint named"))
needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs a trained checkpoint at {STORIES}")


def test_too_little_memory_or_disk_is_told_first(tmp_path, monkeypatch):
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    monkeypatch.setattr("tinychat.conversion.pipeline.available_memory_bytes", lambda: 50_000_000)
    with pytest.raises(ConversionError, match=r"needs some 0\.\d\d GB of memory, and 0\.05 GB are free: .*plain"):
        tinychat.convert(checkpoint, tmp_path / "model")
    monkeypatch.setattr("tinychat.conversion.pipeline.available_memory_bytes", lambda: None)
    disk = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=1000))
    monkeypatch.setattr("tinychat.store.estimates.shutil", disk)
    with pytest.raises(
        ConversionError, match=r"0\.00 GB are needed on the disk of .* for the model .*, and 0\.00 GB are free"
    ):
        tinychat.convert(checkpoint, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_the_memory_of_a_conversion_follows_its_largest_layer():
    small, large = (parse_config(config_of(shape), shape) for shape in ("smollm2-135m", "llama-2-7b"))
    assert memory_needed(small, Recipe()) < 1e9 < memory_needed(large, Recipe()) < 6e9
    assert memory_needed(large, Recipe(algorithm="plain")) < 1.2e9


def test_the_disk_of_a_conversion_has_room_for_a_model_in_int8_first(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama-2-7b")))
    weights = weight_count(parse_config(config_of("llama-2-7b"), "llama"))
    assert 1.0 < disk_needed(tmp_path, Recipe()) / weights < 1.1
    assert disk_needed(tmp_path, Recipe(algorithm="plain")) / weights < 0.6
    assert disk_needed(tmp_path, Recipe("f32")) / weights == pytest.approx(4, rel=0.01)


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    if not STORIES.is_dir():
        pytest.skip(f"needs a trained checkpoint at {STORIES}")
    return tinychat.load(tinychat.convert(STORIES, tmp_path_factory.mktemp("int8") / "model", "int8", check=False))


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    if not STORIES.is_dir():
        pytest.skip(f"needs a trained checkpoint at {STORIES}")
    return tinychat.convert(STORIES, tmp_path_factory.mktemp("default") / "model")


def test_own_words_are_the_same_each_time_and_fill_their_room(int8):
    texts = write_texts(int8, 4)
    assert texts == write_texts(int8, 4)
    length = min(TEXT_TOKENS, int8.context_size)
    assert all(1 < len(ids) <= length for ids in texts)
    assert any(len(ids) == length for ids in texts)
    assert len({tuple(ids) for ids in texts}) == 4


def test_a_file_is_cut_into_even_runs(int8):
    text = "Once upon a time there was a little dog. " * 400
    texts = cut_texts(int8, int8.context_size, text, 5)
    assert len(texts) == 5
    assert {len(ids) for ids in texts} == {min(TEXT_TOKENS, int8.context_size)}
    assert all(ids[0] == int8.encode("")[0] for ids in texts)
    with pytest.raises(SettingError, match="tokens: give"):
        cut_texts(int8, int8.context_size, "No.", 5)


def test_the_certificate_is_what_perplexity_measures(default, tmp_path):
    certificate = json.loads((default / "tinychat.json").read_text())["certificate"]
    assert certificate["texts"].keys() == {"text", "own words"}
    exact = tinychat.load(tinychat.convert(STORIES, tmp_path / "f32", "f32"))
    model = tinychat.load(default)
    ids = write_texts(tinychat.load(tinychat.convert(STORIES, tmp_path / "int8", "int8", check=False)), 1)[0]
    found = examine(Source(open_checkpoint(STORIES)), model, ids)["own words"]
    p, q = (m.logits(ids)[:-1].astype(np.float64) for m in (model, exact))
    p, q = (z - np.log(np.exp(z).sum(axis=1, keepdims=True)) for z in (p, q))
    assert found["kl"] == pytest.approx((np.exp(q) * (q - p)).sum(axis=1).mean(), abs=2e-4)
    assert found["top1"] == pytest.approx((p.argmax(axis=1) == q.argmax(axis=1)).mean(), abs=0.01)
    assert found["tokens"] == len(ids) - 1


@needs_stories
def test_looking_at_texts_takes_error_off(default, tmp_path):
    plain = tinychat.load(tinychat.convert(STORIES, tmp_path / "plain", method="plain", check=False))
    exact = tinychat.load(tinychat.convert(STORIES, tmp_path / "f32", "f32"))
    text = tinychat.load(tmp_path / "f32").decode(
        exact.generate(exact.encode("Lily and Tom went to the"), 300, temperature=0.9, ignore_eos=True)
    )
    divergence = [measure(m, text, against=exact).against.kl_divergence for m in (plain, tinychat.load(default))]
    assert divergence[1] < 0.7 * divergence[0]


def test_the_certificate_is_shown(default, monkeypatch, capsys):
    lines = quality_lines(default)
    assert any("KL" in line and "own words" in line for line in lines)
    assert any("bits a weight" in line for line in lines)
    assert any("largest errors" in line for line in lines)
    stored = path_for("stories")
    stored.parent.mkdir(parents=True)
    stored.symlink_to(default)
    (model,) = list_models()
    assert model.quality.startswith("KL 0.")


def test_without_a_check_there_is_no_certificate(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    made = tinychat.convert(checkpoint, tmp_path / "model", method="plain", check=False)
    assert "certificate" not in json.loads((made / "tinychat.json").read_text())
    assert quality_lines(made) == []


@pytest.mark.parametrize("name", ["llama-all-biases", "qwen2-tied", "qwen3", "phi3-longrope", "smollm3-window"])
def test_every_family_looks_at_its_own_words(name, tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME[name], tmp_path / "checkpoint")
    made = tinychat.convert(checkpoint, tmp_path / "model", bits="4.25")
    description = json.loads((made / "tinychat.json").read_text())
    assert description["coding"] == "gptq"
    assert description["certificate"]["texts"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "model"]


def test_a_calibration_file_is_read(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    file = tmp_path / "text.txt"
    with pytest.raises(TextError, match=r"text\.txt cannot be read"):
        tinychat.convert(checkpoint, tmp_path / "model", calibration=file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TextError, match="UTF-8"):
        tinychat.convert(checkpoint, tmp_path / "model", calibration=file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "text.txt"]
    file.write_text("The cat sat on the mat and looked at the moon. " * 50)
    tinychat.convert(checkpoint, tmp_path / "model", calibration=file, check=False)


def test_int8_looks_at_no_more_than_the_positions_that_have_vectors(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["gpt2"], tmp_path / "checkpoint")
    (tmp_path / "text.txt").write_text("What they say, she hears. " * 100)
    for name, calibration in (("own", None), ("given", tmp_path / "text.txt")):
        made = tinychat.convert(checkpoint, tmp_path / name, quant="int8", calibration=calibration, check=False)
        assert (made / "model.safetensors").exists()


def test_int8_wants_a_file_that_says_something_and_shows_its_whole_progress(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    file, seen = tmp_path / "text.txt", []
    file.write_text("")
    with pytest.raises(SettingError, match=r"^the calibration text has 0 tokens: give some thousands"):
        tinychat.convert(checkpoint, tmp_path / "model", "int8", calibration=file)
    tinychat.convert(checkpoint, tmp_path / "model", "int8", 32, lambda done, total: seen.append(done), check=True)
    assert max(seen) == 1000
    assert seen == sorted(seen)


@pytest.mark.parametrize(("field", "value"), [("algorithm", "awq"), ("bits", "3")])
def test_what_is_not_offered_is_refused(field, value):
    with pytest.raises(SettingError, match=value):
        Recipe(**{field: value})


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        ({"quant": "int8", "bits": "5"}, "bits does nothing beside quant int8"),
        ({"quant": "f32", "bits": "5"}, "bits does nothing beside quant f32"),
        ({"quant": "f32", "group_size": 64}, "group_size does nothing beside quant f32"),
        ({"quant": "native", "algorithm": "importance"}, "method does nothing beside quant native"),
        ({"quant": "native", "calibration": Path("text")}, "calibration does nothing beside quant native"),
        ({"algorithm": "plain", "bits": "5"}, "bits does nothing beside method plain"),
        (
            {"quant": "int8", "algorithm": "plain", "calibration": Path("text")},
            "calibration does nothing beside method plain",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(recipe, problem):
    with pytest.raises(FieldError, match=f"^{problem}: leave one of them out$"):
        Recipe(**recipe)


def test_bits_decide_what_stays_in_int8():
    large = parse_config(config_of("llama-3.2-1b"), "shape")
    untied = parse_config(config_of("tinyllama-1.1b"), "shape")
    small = parse_config(config_of("smollm2-135m"), "shape")
    sizes = {}
    for config in (large, untied, small):
        for bits in ("4.35", "4.5", "5.0", "5.5", "8.25"):
            quantization = fitted(config, Recipe(bits=bits))
            specs = tensor_specs(config, quantization)
            size = sum(spec.bytes for spec in specs.values())
            assert size <= float(bits) * weight_count(config) / 8
            sizes[bits] = quantization
        assert fitted(config, Recipe(bits="4.25")) == Quantization()
    assert sizes["4.5"].frequent > 10000
    assert sizes["5.0"].int8 == () and sizes["5.0"].frequent > 40_000
    assert sizes["5.5"].int8 == ("down_proj",) and sizes["5.5"].frequent > small.vocab_size / 4
    assert set(sizes["8.25"].int8) > {"embed_tokens", "down_proj", "gate_up_proj"}
    assert fitted(untied, Recipe(bits="5.5")).int8 == ("lm_head", "down_proj")
    assert fitted(small, Recipe(algorithm="plain")) == Quantization()
    assert fitted(small, Recipe()).frequent > fitted(small, Recipe(bits="4.5")).frequent
    assert fitted(untied, Recipe()).frequent == 0


@pytest.mark.parametrize(
    ("name", "sizes", "has_gates"),
    [
        ("gpt2", {"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12}, False),
        ("qwen3-tied", {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}, True),
    ],
)
def test_only_linears_that_a_model_has_stay_in_int8(name, sizes, has_gates):
    config = parse_config(families.BY_NAME[name].config | sizes, name)
    up = "gate_up_proj" if has_gates else "up_proj"
    assert set(fitted(config, Recipe(group_size=128, bits="8.25")).int8) == {
        "embed_tokens",
        "o_proj",
        "qkv_proj",
        "down_proj",
        up,
    }


def test_parts_make_one_progress():
    seen = []
    phases = Phases(lambda done, total: seen.append((done, total)))
    for part in (phases.part(0.25), phases.part(0.5), phases.part(0.1, ends=True)):
        part(0, 8)
        part(8, 8)
    assert seen == [(0, 1000), (250, 1000), (250, 1000), (750, 1000), (750, 1000), (1000, 1000)]
    assert Phases(None).part(0.5) is None


@pytest.mark.skipif(
    not SMOLLM2.is_dir(), reason="takes minutes: set TINYCHAT_SMOLLM2 to SmolLM2-135M-Instruct's folder"
)
@pytest.mark.parametrize(
    ("bits", "most_bytes", "text", "own"), [("4.5", 75.8e6, 0.1, 0.07), ("5.45", 92e6, 0.06, 0.05)]
)
def test_a_real_model_stays_near_its_checkpoint(bits, most_bytes, text, own, tmp_path):
    made = tinychat.convert(SMOLLM2, tmp_path / "model", bits=bits)
    assert (made / "model.safetensors").stat().st_size <= most_bytes
    texts = json.loads((made / "tinychat.json").read_text())["certificate"]["texts"]
    assert texts["text"]["kl"] <= text
    assert texts["own words"]["kl"] <= own
