"""The demo model's tokenizer: what it is trained on is what the chat template renders."""

import json
from itertools import islice

import pytest

from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template
from weights.training import vocabulary
from weights.training.conversations import corpus

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi, I'm Çelik. 12 + 7?"},
    {"role": "assistant", "content": "12 + 7 = 19."},
]


@pytest.fixture(scope="module")
def tokenizer():
    return vocabulary.train_tokenizer(islice(corpus(1), 300))


def test_the_same_corpus_gives_the_same_tokenizer(tokenizer):
    assert vocabulary.train_tokenizer(islice(corpus(1), 300)).to_str() == tokenizer.to_str()


def test_any_text_survives(tokenizer):
    for text in ("Hello  there,\n\tyou", "naïve 日本 🙂", " 12 + 345"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_number_below_a_hundred_is_a_piece(tokenizer):
    assert tokenizer.encode("1234").tokens == ["12", "34"]
    assert all(len(tokenizer.encode(f"{number}").ids) == 1 for number in range(100))


def test_the_chat_template_renders_what_is_trained_on(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    settings = {"eos_token": vocabulary.END, "chat_template": vocabulary.CHAT_TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ids, _ = vocabulary.encode(tokenizer, CHAT)
    template = load_template(tmp_path, load_tokenizer(tmp_path))
    assert template.render_ids(CHAT, add_generation_prompt=False) == ids
    assert template.render_ids(CHAT[:-1]) == ids[: ids.index(tokenizer.token_to_id("<|assistant|>")) + 1]


def test_only_replies_and_their_ends_are_learned(tokenizer):
    ids, weights = vocabulary.encode(tokenizer, CHAT)
    learned = [id for id, weight in zip(ids, weights, strict=True) if weight]
    assert tokenizer.decode(learned, skip_special_tokens=False) == "12 + 7 = 19.<|end|>"


def test_a_long_reply_counts_less_per_token(tokenizer):
    _, weights = vocabulary.encode(tokenizer, [{"role": "assistant", "content": "1 " * 200}])
    assert 0 < weights[-1] < 0.5
