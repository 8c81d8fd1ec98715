"""The bundled model: small, made of the checkpoint beside it, in the wheel, and able to talk."""

import tomllib
from pathlib import Path

import pytest
import typed_program

import tinychat
from tinychat.conversation.conversation import Chat

REPO = Path(__file__).resolve().parents[1]
DEMO, CHECKPOINT = REPO / "weights" / "demo", REPO / "weights" / "demo-hf"


@pytest.fixture(scope="module")
def model():
    return tinychat.load("demo")


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_sizes_that_a_repository_can_carry():
    assert size_of(DEMO) <= 8e6
    assert size_of(CHECKPOINT) <= 16e6


def test_converting_the_checkpoint_gives_the_same_bytes(tmp_path):
    made = tinychat.convert(CHECKPOINT, tmp_path / "demo", method="plain", check=False)
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in DEMO.iterdir())
    for path in DEMO.iterdir():
        assert (made / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_wheel_carries_it_where_the_package_looks():
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"weights/demo": "tinychat/weights/demo"}


def test_it_knows_a_capital(model):
    assert "Paris" in Chat(model, temperature=0.0, max_tokens=40).say("What is the capital of France?")


def test_it_remembers_a_name(model):
    chat = Chat(model, temperature=0.0, max_tokens=60)
    chat.say("My name is Miriam.")
    chat.say("What does a cow say?")
    assert "Miriam" in chat.say("What is my name?")


def test_stories_differ_from_seed_to_seed(model):
    def story(seed):
        return Chat(model, seed=seed, max_tokens=250).say("Tell me a story about a fox.")

    stories = {story(seed) for seed in range(3)}
    assert len(stories) == 3
    assert all("fox" in text for text in stories)


def test_the_program_that_scripts_check_types_runs():
    typed_program.main("demo")
