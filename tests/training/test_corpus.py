"""The demo model's corpus: the same on every machine, varied, and true."""

import os
import re
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import pytest

from tinychat.chat.commands import COMMANDS as SLASH_COMMANDS
from tinychat.cli import command_line
from weights.training import arithmetic, capitals, conversations, examination, loss_curve, order, stories, usage
from weights.training.memory import KINDS, Memory
from weights.training.phrasing import as_typed, phrase
from weights.training.recitation import Corpus

REPO = Path(__file__).resolve().parents[2]
PRINT_SOME = "from weights.training.conversations import conversation; print([conversation(1, i) for i in range(60)])"


@pytest.fixture(scope="module")
def chats():
    return list(islice(conversations.corpus(1), 1500))


def test_another_process_writes_the_same_bytes():
    def written(hash_seed):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPO)}
        return subprocess.run(
            [sys.executable, "-c", PRINT_SOME], capture_output=True, check=True, env=environment
        ).stdout

    assert written("1") == written("2")


def test_seeds_differ():
    assert conversations.conversation(1, 0) != conversations.conversation(2, 0)


def test_turns_alternate_and_every_field_is_filled(chats):
    for chat in chats:
        turns = chat[1:] if chat[0]["role"] == "system" else chat
        assert [message["role"] for message in turns] == ["user", "assistant"] * (len(turns) // 2)
        for message in chat:
            assert message["content"].strip()
            assert not re.search(r"[{}\[\]|]|  ", message["content"]), message["content"]


def test_no_two_stories_are_the_same(chats):
    told = [m["content"] for chat in chats for m in chat if m["role"] == "assistant" and len(m["content"]) > 200]
    assert len(told) > 100
    assert len(set(told)) == len(told)


def test_sums_are_right():
    for seed in range(300):
        for _, reply in arithmetic.turns(Random(seed)):
            found = re.match(r"(\d+) (plus|minus|\+|-) (\d+) (?:is|=) (\d+)", reply)
            if found is None:
                assert "up to 20" in reply
                continue
            a, b, result = (int(found[i]) for i in (1, 3, 4))
            assert result == (a + b if found[2] in ("plus", "+") else a - b)
            assert 0 <= result <= 20


def test_counting_makes_no_jumps():
    for seed in range(300):
        for _, reply in order.turns(Random(seed)):
            numbers = [int(number) for number in re.findall(r"\d+", reply)]
            if len(numbers) > 2:
                assert {b - a for a, b in pairwise(numbers)} in ({1}, {-1})


def test_about_sixty_capitals_and_none_twice():
    assert len(capitals.CAPITALS) >= 60
    assert len(set(capitals.CAPITALS.values())) == len(capitals.CAPITALS)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_answers_with_what_was_told_last(kind):
    memory = Memory(Random(7))
    assert re.search("haven't told|don't know", memory.ask(kind)[1])
    memory.tell(kind)
    told, _ = memory.tell(kind)
    _, reply = memory.ask(kind)
    value = memory._values[kind]
    assert value.lower() in told.lower()
    assert value in reply


def test_a_story_keeps_its_names_and_its_pronouns():
    hero = stories.Character("fox", "Mila", True)
    friend = stories.Character("bear", "Nora", True)
    for seed in range(60):
        story = stories.tell(Random(seed), hero, friend, "in the forest")
        assert "Mila" in story and "Nora" in story and "fox" in story and "bear" in story
        assert not re.search(r"\b(he|him|his)\b", story, re.IGNORECASE), story
        assert story[-1] in '."'


def test_every_explained_command_and_slash_command_exists():
    assert set(usage.COMMANDS) <= set(command_line.commands)
    assert set(usage.SLASH) <= {f"/{name}" for name in SLASH_COMMANDS}


def test_every_explained_flag_exists():
    known = {
        flag
        for command in (command_line, *command_line.commands.values())
        for option in command.params
        for flag in option.opts
    }
    assert set(usage.FLAGS) <= known


def test_the_examination_has_two_hundred_prompts_that_the_corpus_has_not(chats):
    questions = examination.questions()
    assert len({question.messages for question in questions}) == 200
    seen = {message["content"].lower().strip(" ?.!") for chat in chats for message in chat}
    assert [q for q in questions if q.messages[-1].lower().strip(" ?.!") in seen] == []


@pytest.mark.parametrize(
    ("skill", "wanted", "reply", "right"),
    [
        ("sums", "9", "18 - 9 = 9.", True),
        ("sums", "9", "18 - 9 = 8.", False),
        ("sums", "1", "11 - 10 = 11.", False),
        ("counting", "3, 4, 5", "3, 4, 5.", True),
        ("counting", "3, 4, 5", "3, 4, 5, 6.", False),
        ("sounds", "moo", "A cow moos.", True),
        ("opposites", "hot", "It is a shot.", False),
        ("honesty", "don't know|can't", "I can't say.", True),
        ("jokes", "<joke>", "Hello!", False),
    ],
)
def test_answers_are_marked(skill, wanted, reply, right):
    question = examination.Question(skill, ("",), tuple(wanted.split(" & ")))
    assert examination.is_right(question, reply) is right


def test_recitation_finds_the_longest_stretch():
    corpus = Corpus(conversations=50)
    line = max(corpus._lines, key=len)
    assert corpus.has_line(line)
    assert corpus.longest_common(f"Xyzzy {line[5:60]} qqq").strip() == line[5:60].strip()


def test_phrases_take_one_alternative_and_keep_what_fills_them():
    assert phrase(Random(1), "[a|a] [|] {x}", x="[b|c]") == "a [b|c]"
    assert {phrase(Random(seed), "[a|[b|c]]") for seed in range(40)} == {"a", "b", "c"}
    assert all(as_typed(Random(seed), "Hi I am Bo.").strip() for seed in range(50))


def test_the_loss_curve_takes_the_last_word_on_each_step():
    log = "step 10 of 20 tokens 100 loss 4.0 rate 1\nstep 20 of 20 tokens 200 loss 2.0 rate 1\n"
    assert loss_curve.points(log + "step 20 of 20 tokens 200 loss 1.0 rate 1\n") == [(100, 4.0), (200, 1.0)]
    assert loss_curve.svg([(100, 4.0), (200, 1.0)]).count(",") == 2
