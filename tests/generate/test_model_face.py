"""The public Model; tests/engine is about the decoder below it."""

import numpy as np
import pytest
from fake_model import BOS, EOS, Continuation, fake_model

from tinychat.errors import ContextError, SettingError
from tinychat.text.template import ChatTemplate

STORY = Continuation({"Once": " upon a time", "Twice": " a day"})


def test_encode_and_decode():
    model = fake_model(STORY)
    assert model.encode("ab") == [BOS, 97, 98]
    assert model.encode("ab", add_bos=False) == [97, 98]
    assert model.decode([BOS, 97, 98, EOS]) == "ab"


def test_render_and_its_ids_agree():
    model = fake_model(STORY)
    messages = [{"role": "user", "content": "hi"}]
    assert model.render(messages) == "<bos><user>hi<assistant>"
    assert model.render(messages, add_generation_prompt=False) == "<bos><user>hi"
    assert model.tokenizer.decode(model.render_ids(messages), skip_special=False) == model.render(messages)


def test_rendered_text_is_without_the_guard_marks():
    model = fake_model(STORY)
    model.template = ChatTemplate("{{ messages[0].content }}", model.tokenizer, "test")
    messages = [{"role": "user", "content": "a <eos> b"}]
    assert model.template.render(messages) != "a <eos> b"
    assert model.render(messages) == "a <eos> b"


def test_stream_takes_text_or_ids():
    model = fake_model(STORY)
    for prompt in ("Once", model.encode("Once")):
        assert "".join(delta.text for delta in model.stream(prompt, temperature=0.0)) == " upon a time"


def test_one_stop_text_means_itself():
    model = fake_model(STORY)
    deltas = model.stream("Once", temperature=0.0, stop="time")
    assert "".join(delta.text for delta in deltas) == " upon a "


def test_generate_returns_ids_without_the_stop_id():
    model = fake_model(STORY)
    assert bytes(model.generate(model.encode("Twice"))) == b" a day"
    assert bytes(model.generate(model.encode("Twice"), max_tokens=3)) == b" a "
    assert model.generate(model.encode("Twice"), max_tokens=8, ignore_eos=True)[-2:] == [EOS, EOS]


def test_each_stream_has_its_own_summary():
    model = fake_model(STORY)
    once, twice = model.stream("Once", temperature=0.0), model.stream("Twice", temperature=0.0)
    for run in (once, twice):
        assert (run.summary.new_tokens, run.summary.finish_reason) == (0, "interrupted")
        list(run)
    assert (once.summary.new_tokens, twice.summary.new_tokens) == (len(" upon a time"), len(" a day"))


def test_logits_are_of_every_position_and_checked():
    model = fake_model(STORY, context_size=6)
    logits = model.logits(model.encode("Once"))
    assert logits.shape == (5, model.sequence.vocab_size)
    assert np.argmax(logits[-1]) == ord(" ")
    with pytest.raises(ContextError):
        model.logits([1] * 7)
    with pytest.raises(SettingError):
        model.logits([])


def test_unknown_sampling_names_are_python_errors():
    with pytest.raises(TypeError, match="temprature"):
        fake_model(STORY).stream("Once", temprature=1.0)
