"""The long conversation in short; and that it would see what it looks for."""

import time

import families
import numpy as np
import pytest
import soak

from tinychat.conversion.convert import convert
from tinychat.generate.loading import load_folder

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path):
    checkpoint = families.write_checkpoint(families.BY_NAME["smollm2"], tmp_path / "checkpoint")
    return load_folder(convert(checkpoint, tmp_path / "model"), context=256)


def test_the_demo_model_holds_a_while(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(soak, "STEPS_BETWEEN_CHECKS", 8)
    monkeypatch.setattr(soak, "SETTLING_STEPS", 16)
    assert soak.converse(soak.Soak(soak.open_models([]), tmp_path, seed=1), 2.0) == 0
    assert "logits equal to those of a fresh run" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_conversation(model, tmp_path):
    said = []
    for run in range(2):
        model.sequence.rewind(0)
        model.sequence.resize(256)
        talk = soak.Soak({"model": model}, tmp_path / str(run), seed=7)
        for _ in range(8):
            talk.step()
        said.append([message.content for message in talk.chat.messages])
    assert said[0] == said[1]


def test_a_cache_that_is_not_what_a_fresh_run_computes_is_seen(model):
    model.generate(model.encode("Once upon a time"), max_tokens=8)
    soak.check_logits("model", model)
    for array in model.sequence.engine.pool.buffers:
        array[...] = 0
    with pytest.raises(AssertionError, match="differ from a fresh run"):
        soak.check_logits("model", model)


def test_growth_is_seen(tmp_path, monkeypatch, capsys):
    kept = []

    def leak(self):
        kept.append(np.ones(1 << 19))
        time.sleep(0.01)
        self.done["leak"] += 1

    monkeypatch.setattr(soak.Soak, "step", leak)
    monkeypatch.setattr(soak, "STEPS_BETWEEN_CHECKS", 2)
    monkeypatch.setattr(soak, "SETTLING_STEPS", 4)
    talk = soak.Soak(soak.open_models([]), tmp_path, seed=1)
    assert soak.converse(talk, 4.0) == 1
    assert "something grew" in capsys.readouterr().out
