import json

import pytest
from text.tokenizer_folders import STYLES, write_style, write_tokenizer

from tinychat.errors import TextError
from tinychat.text.loading import load_tokenizer
from tinychat.text.stop import end_of_turn_id, stop_ids
from tinychat.text.template import ChatTemplate, load_template

ENDS = {
    "llama2": "</s>",
    "llama3": "<|eot_id|>",
    "chatml": "<|im_end|>",
    "zephyr": "</s>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "phi3": "<|end|>",
    "qwen3": "<|im_end|>",
    "smollm3": "<|im_end|>",
    "granite": "<|end_of_text|>",
    "command_r": "<|END_OF_TURN_TOKEN|>",
    "deepseek": "<\uff5cend▁of▁sentence\uff5c>",
}


@pytest.mark.parametrize("style", STYLES)
def test_end_of_turn_of_every_style(tmp_path, style):
    folder = write_style(tmp_path, style)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.piece(end_of_turn_id(tokenizer, load_template(folder, tokenizer))) == ENDS[style]


@pytest.mark.parametrize(
    "source",
    ["{{ bos_token }}nothing of the reply", "{{ raise_exception('no') }}", "{{ messages[1].content }} plain end"],
)
def test_templates_that_write_no_end(tmp_path, source):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, "byte-level", ["<a>", "<b>"]))
    assert end_of_turn_id(tokenizer, ChatTemplate(source, tokenizer, "test")) is None


@pytest.mark.parametrize(
    ("source", "end"),
    [
        # Inkling's, and Solar Open's, which writes none.
        ("<|message_model|><|content_text|>{}<|end_message|><|content_model_end_sampling|>", True),
        ("<|begin|>assistant<|content|>{}<|end|>", False),
    ],
)
def test_the_end_of_a_message_is_not_that_of_a_reply(tmp_path, source, end):
    marks = ["<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|end_message|>"]
    if not end:
        marks = ["<|begin|>", "<|think|>", "<|content|>", "<|end|>"]
    last = "<|content_model_end_sampling|>"
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, "byte-level", ["<a>", "<b>", *marks, last]))
    template = ChatTemplate(source.format("{{ messages[1].content }}"), tokenizer, "test")
    assert end_of_turn_id(tokenizer, template) == (tokenizer.token_id(last) if end else None)


def test_union_of_all_sources(tmp_path):
    folder = write_tokenizer(tmp_path, "byte-level", ["<a>", "<b>", "<c>"])
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9, "x", None, True, -1]}))
    tokenizer = load_tokenizer(folder)
    template = ChatTemplate("{{ messages[1].content }}<c>\n", tokenizer, "test")
    assert stop_ids(folder, tokenizer, template) == {1, 2, 7, 8, 9}


def test_without_any_file(tmp_path):
    folder = write_tokenizer(tmp_path, "byte-level", ["<a>", "<b>"])
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(folder)
    assert stop_ids(folder, tokenizer, load_template(folder, tokenizer)) == frozenset()


def test_damaged_generation_config(tmp_path):
    folder = write_style(tmp_path, "chatml")
    (folder / "generation_config.json").write_text("[")
    tokenizer = load_tokenizer(folder)
    with pytest.raises(TextError, match=r"generation_config\.json"):
        stop_ids(folder, tokenizer, load_template(folder, tokenizer))
