"""The files of sentence-transformers: which are read, and which are refused in a line."""

import json

import embedders
import families
import pytest

from tinychat.checkpoint.checkpoint import open_checkpoint
from tinychat.errors import CheckpointError, UnsupportedModelError
from tinychat.models.architectures import parse_config, read_config
from tinychat.models.embedder import Embedder, read_embedder


@pytest.mark.parametrize(("theirs", "ours"), [("lasttoken", "last"), ("mean_tokens", "mean"), ("cls_token", "cls")])
def test_files_are_read(tmp_path, theirs, ours):
    assert read_embedder(tmp_path) is None
    embedders.write_modules(tmp_path, theirs)
    assert read_embedder(tmp_path) == Embedder(ours, embedders.PROMPTS["prompts"])
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": theirs}))
    assert read_embedder(tmp_path).pooling == ours
    embedders.write_modules(tmp_path, theirs, modules=("Transformer", "Pooling"), prompts={})
    assert read_embedder(tmp_path) == Embedder(ours)


def test_the_default_prompt_is_put_first_unless_another_is_named(tmp_path):
    embedders.write_modules(tmp_path, prompts=embedders.PROMPTS | {"default_prompt_name": "query"})
    embedder = read_embedder(tmp_path)
    assert embedder.prompted("a") == embedder.prompted("a", "query") == embedders.QUERY + "a"
    assert embedder.prompted("a", "document") == "a"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "max_tokens"}, "pooling max_tokens is not supported; supported are mean_tokens, lasttoken, cls"),
        ({"pooling_mode_mean_tokens": True}, "pooling lasttoken and mean_tokens is not supported"),
        ({"pooling": "none"}, "pooling none is not supported"),
        ({"pooling": "mean_tokens", "include_prompt": False}, "include_prompt false is not supported"),
        ({"pooling_mode_lasttoken": "yes"}, "pooling_mode_lasttoken is 'yes'; expected true or false"),
        ({"modules": ("Transformer", "Pooling", "LayerNorm")}, "a module of type 'LayerNorm' is not supported"),
        ({"modules": ("Transformer", "Dense", "Pooling")}, "in this order are not supported"),
        ({"modules": ("Transformer", "Pooling", *("Dense",) * 3)}, "in this order are not supported"),
        ({"modules": ("Pooling", "Transformer")}, "modules Pooling, Transformer in this order are not supported"),
        ({"modules": ("Transformer",)}, "modules Transformer in this order are not supported"),
        ({"prompts": {"prompts": {"query": 1}}}, "expected texts of at most"),
        ({"prompts": {"prompts": ["query"]}}, "expected an object of at most"),
        ({"prompts": {"default_prompt_name": "query"}}, "expected the name of a prompt"),
        ({"prompts": []}, "must hold a JSON object"),
    ],
)
def test_what_is_not_supported_is_refused_before_the_weights(tmp_path, fields, message):
    folder = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    (folder / "model.safetensors.index.json").unlink()
    embedders.write_modules(folder, **fields)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message) as raised:
        open_checkpoint(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "ReLU' is not supported"),
        ({"in_features": 79}, "in_features is 79; expected 80, as many as the layer before gives"),
        ({"out_features": 0}, "out_features is 0; expected an integer"),
    ],
)
def test_linear_layers_that_are_refused(tmp_path, rng, changes, message):
    embedders.write_modules(tmp_path, modules=embedders.WITH_DENSE)
    embedders.write_dense(tmp_path, rng, [(80, 96), (40, 80)])
    assert [step.rows for step in read_embedder(tmp_path).dense] == [80, 40]
    file = tmp_path / "3_Dense/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read_embedder(tmp_path)


def test_linear_layers_that_do_not_fit_are_refused_before_a_conversion(tmp_path, rng):
    embedders.write_embedder(tmp_path / "checkpoint", modules=embedders.WITH_DENSE)
    embedders.write_dense(tmp_path / "checkpoint", rng, [(80, 97), (40, 80)])
    with pytest.raises(CheckpointError, match=r"2_Dense/config\.json: in_features is 97; the model gives 96 numbers"):
        open_checkpoint(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint/2_Dense/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"in_features": 96}))
    with pytest.raises(CheckpointError, match=r"linear\.weight"):
        open_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize("text", ["{}", "[1]", "[", ""])
def test_a_damaged_list_of_modules(tmp_path, text):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError):
        read_embedder(tmp_path)


def test_a_link_out_of_the_checkpoint_is_refused_in_folders_too(tmp_path):
    folder = families.write_checkpoint(families.BY_NAME["qwen3"], tmp_path / "checkpoint")
    (tmp_path / "elsewhere").mkdir()
    embedders.write_modules(folder)
    (folder / "1_Pooling").rename(tmp_path / "elsewhere/1_Pooling")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere/1_Pooling")
    with pytest.raises(CheckpointError, match="is a link to a file outside of the checkpoint"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("Qwen3Model", "qwen3"), ("MistralModel", "mistral"), ("Gemma3TextModel", "gemma3"), ("GPT2Model", "gpt2")],
)
def test_an_architecture_without_an_output_matrix(architecture, name):
    raw = families.BY_NAME[name].config
    config = parse_config(raw | {"architectures": [architecture]}, "config.json")
    assert (config.architecture, config.tie_word_embeddings, config.writes) == (raw["architectures"][0], True, False)
    assert parse_config(raw, "config.json").writes


def test_modules_beside_a_configuration_take_its_output_matrix_away(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(embedders.VARIANT.config))
    assert read_config(tmp_path / "config.json").writes
    embedders.write_modules(tmp_path)
    config = read_config(tmp_path / "config.json")
    assert (config.tie_word_embeddings, config.writes) == (True, False)


@pytest.mark.parametrize(
    ("name", "architecture", "key", "value"),
    [
        ("gemma3", "Gemma3TextModel", "use_bidirectional_attention", True),
        ("qwen2", "Qwen2ForCausalLM", "is_causal", False),
    ],
)
def test_who_attends_to_later_tokens_writes_nothing(name, architecture, key, value):
    raw = families.BY_NAME[name].config | {"architectures": [architecture]}
    config = parse_config(raw | {key: value}, "config.json")
    assert (config.bidirectional, config.writes) == (True, False)
    assert not parse_config(raw | {key: not value}, "config.json").bidirectional


@pytest.mark.parametrize("name", ["qwen3.5", "lfm2", "bloom"])
def test_layers_of_another_kind_see_the_past_alone(name):
    raw = families.BY_NAME[name].config | {"is_causal": False}
    with pytest.raises(UnsupportedModelError, match="attention to later tokens is not supported for such layers"):
        parse_config(raw, "config.json")
