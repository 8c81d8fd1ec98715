"""The demo model's corpus and tokenizer: those that the bundled model was made of, and true to the program."""

import hashlib
import json
import re
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from tinychat.chat.commands import COMMANDS as SLASH_COMMANDS
from tinychat.cli import command_line
from tinychat.text.loading import load_tokenizer
from tinychat.text.template import load_template
from weights.training import counting, stories, usage, vocabulary
from weights.training.conversations import corpus
from weights.training.memory import KINDS, Memory

BUNDLED = Path(__file__).resolve().parents[2] / "weights" / "demo-hf"
# Of the conversations that the tokenizer was trained on, the first of training too.
CORPUS_SHA256 = "9f74da57f9341223536fa2c58dcc1d2a96caaaf856e27906876d955cfe1b58ad"
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi, I'm Çelik. 12 + 7?"},
    {"role": "assistant", "content": "12 + 7 = 19."},
]


@pytest.fixture(scope="module")
def chats():
    return list(islice(corpus(1), 20_000))


def test_the_corpus_is_that_of_the_bundled_model(chats):
    lines = (json.dumps(chat, ensure_ascii=False) + "\n" for chat in chats)
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == CORPUS_SHA256


def test_it_gives_the_bundled_tokenizer(chats):
    made = json.loads(vocabulary.train_tokenizer(chats).to_str())
    assert made["model"] == json.loads((BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))["model"]


def test_turns_alternate_and_every_field_is_filled(chats):
    for chat in chats:
        turns = chat[1:] if chat[0]["role"] == "system" else chat
        assert [message["role"] for message in turns] == ["user", "assistant"] * (len(turns) // 2)
        for message in chat:
            assert message["content"].strip()
            assert not re.search(r"[{}\[\]|]|  ", message["content"]), message["content"]


def test_sums_are_right_and_counting_makes_no_jumps():
    for seed in range(300):
        for _, reply in counting.sums(Random(seed)):
            found = re.match(r"(\d+) (plus|minus|\+|-) (\d+) (?:is|=) (\d+)", reply)
            if found is None:
                assert "up to 20" in reply
                continue
            a, b, result = (int(found[i]) for i in (1, 3, 4))
            assert 0 <= result <= 20
            assert result == (a + b if found[2] in ("plus", "+") else a - b)
        for _, reply in counting.order(Random(seed)):
            numbers = [int(number) for number in re.findall(r"\d+", reply)]
            assert len(numbers) < 3 or {b - a for a, b in pairwise(numbers)} in ({1}, {-1})


@pytest.mark.parametrize("kind", KINDS)
def test_memory_answers_with_what_was_told_last(kind):
    memory = Memory(Random(7))
    assert re.search("haven't told|don't know", memory.ask(kind)[1])
    memory.tell(kind)
    told, _ = memory.tell(kind)
    value = memory._values[kind]
    assert value.lower() in told.lower()
    assert value in memory.ask(kind)[1]


def test_a_story_keeps_its_names_and_its_pronouns():
    hero = stories.Character("fox", "Mila", True)
    friend = stories.Character("bear", "Nora", True)
    for seed in range(60):
        story = stories.tell(Random(seed), hero, friend, "in the forest")
        assert "Mila" in story and "Nora" in story and "fox" in story and "bear" in story
        assert not re.search(r"\b(he|him|his)\b", story, re.IGNORECASE), story
        assert story[-1] in '."'


def test_every_explained_command_and_flag_exists():
    flags = {
        flag
        for command in (command_line, *command_line.commands.values())
        for option in command.params
        for flag in option.opts
    }
    assert set(usage.COMMANDS) <= set(command_line.commands)
    assert set(usage.SLASH) <= {f"/{name}" for name in SLASH_COMMANDS}
    assert set(usage.FLAGS) <= flags


def test_the_bundled_chat_template_renders_what_is_trained_on():
    settings = json.loads((BUNDLED / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["chat_template"] == vocabulary.CHAT_TEMPLATE
    tokenizer = load_tokenizer(BUNDLED)
    template = load_template(BUNDLED, tokenizer)
    ids, weights = vocabulary.encode(vocabulary.Tokenizer.from_file(str(BUNDLED / "tokenizer.json")), CHAT)
    assert template.render_ids(CHAT, add_generation_prompt=False) == ids
    assert template.render_ids(CHAT[:-1]) == ids[: ids.index(tokenizer.token_id("<|assistant|>")) + 1]
    learned = [token_id for token_id, weight in zip(ids, weights, strict=True) if weight]
    assert tokenizer.decode(learned, skip_special=False) == "12 + 7 = 19.<|end|>"


def test_a_long_reply_counts_less_per_token():
    tokenizer = vocabulary.Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    _, weights = vocabulary.encode(tokenizer, [{"role": "assistant", "content": "1 " * 200}])
    assert 0 < weights[-1] < 0.5
