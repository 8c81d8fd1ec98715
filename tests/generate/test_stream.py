import gc
import itertools
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from fake_model import EOS, ByteTokenizer, Continuation, FakeSequence

from tinychat.errors import ContextError, SettingError, TinychatError
from tinychat.generate.model import Model

STORY = Continuation({"Once": " upon a time"})


def start(sequence, prompt="Once", **options):
    tokenizer = options.pop("tokenizer", ByteTokenizer())
    model = Model(sequence, tokenizer, None, frozenset({EOS}), Path("fake"))
    return model.stream(prompt, **({"temperature": 0.0} | options))


def text_of(run):
    return "".join(delta.text for delta in run)


def test_the_text_ends_before_the_stop_id():
    run = start(FakeSequence(STORY))
    assert text_of(run) == " upon a time"
    assert bytes(run.token_ids) == b" upon a time"
    assert run.summary.finish_reason == "stop"


def test_pieces_come_token_by_token():
    deltas = list(start(FakeSequence(STORY), max_tokens=3))
    assert [(delta.text, delta.ids) for delta in deltas] == [(" ", (32,)), ("u", (117,)), ("p", (112,))]


def test_ignore_eos_goes_on_to_the_token_limit():
    run = start(FakeSequence(STORY), ignore_eos=True, max_tokens=20)
    assert text_of(run) == " upon a time"
    assert run.token_ids[12:] == [EOS] * 8
    assert run.summary.finish_reason == "length"


def test_a_reply_may_fill_the_context_to_the_last_position():
    sequence = FakeSequence(STORY, context_size=8)
    run = start(sequence)
    # Five ids of prompt, three positions left; the fourth token is chosen but never run.
    assert text_of(run) == " upo"
    assert len(sequence.ids) == 8
    assert run.summary.finish_reason == "context"


def test_a_prompt_that_fills_the_context_still_gets_one_token():
    run = start(FakeSequence(STORY, context_size=5))
    assert text_of(run) == " "
    assert run.summary.finish_reason == "context"


def test_a_longer_prompt_is_refused_before_anything_runs():
    sequence = FakeSequence(STORY, context_size=4)
    with pytest.raises(ContextError, match="5 tokens but the context holds 4"):
        start(sequence)
    assert sequence.steps == []


def test_an_empty_prompt_is_refused():
    with pytest.raises(SettingError, match="empty"):
        start(FakeSequence(STORY), [])


def test_a_stop_string_ends_the_reply_and_stays_out_of_the_text():
    run = start(FakeSequence(STORY), stop=["a ti"])
    assert text_of(run) == " upon "
    assert run.summary.finish_reason == "stop_string"


def test_text_that_only_began_a_stop_string_comes_at_the_end():
    run = start(FakeSequence(STORY), stop=["time!"])
    assert text_of(run) == " upon a time"
    assert run.summary.finish_reason == "stop"
    run = start(FakeSequence(STORY), stop=["upon b"], max_tokens=5)
    assert text_of(run) == " upon"


def test_characters_come_whole():
    deltas = list(start(FakeSequence(Continuation({"Hi": " 😀é"})), "Hi"))
    assert [delta.text for delta in deltas if delta.text] == [" ", "😀", "é"]


def test_a_character_cut_by_a_limit_is_left_out():
    assert text_of(start(FakeSequence(Continuation({"Hi": "a😀"})), "Hi", max_tokens=3)) == "a"
    assert text_of(start(FakeSequence(Continuation({"Hi": "a😀"}), context_size=6), "Hi")) == "a"
    asked = itertools.count()
    stopped = start(FakeSequence(Continuation({"Hi": "a😀"})), "Hi", cancelled=lambda: next(asked) == 3)
    assert (text_of(stopped), stopped.summary.finish_reason) == ("a", "interrupted")


def half_a_character(ids):
    """Continue "Hi" with the first bytes of a character, and end."""
    return {"Hi": 0xF0, "Hi\xf0": 0x9F}.get(bytes(i for i in ids if i < 256).decode("latin-1"), EOS)


def test_a_character_that_the_model_itself_leaves_half_becomes_a_replacement():
    assert text_of(start(FakeSequence(half_a_character), "Hi")) == "\ufffd"


def test_a_stop_string_completed_by_the_flush_is_reported():
    run = start(FakeSequence(half_a_character), "Hi", stop=["\ufffd"])
    assert text_of(run) == ""
    assert run.summary.finish_reason == "stop_string"


class StrippingTokenizer(ByteTokenizer):
    strips_first_space = True


@pytest.mark.parametrize(("joins_prompt", "text"), [(True, " upon a time"), (False, "upon a time")])
def test_the_first_space_belongs_to_a_text_that_goes_on(joins_prompt, text):
    run = start(FakeSequence(STORY), tokenizer=StrippingTokenizer(), joins_prompt=joins_prompt)
    assert text_of(run) == text


def test_cancelling_ends_the_reply_with_its_held_back_text():
    sequence = FakeSequence(STORY)
    run = start(sequence, stop=["upon x"], cancelled=lambda: len(sequence.steps) > 4)
    assert text_of(run) == " upon"
    assert run.summary.finish_reason == "interrupted"


def test_cancelling_while_the_prompt_is_read_gives_no_text():
    sequence = FakeSequence(STORY, chunk_size=2)
    run = start(sequence, cancelled=lambda: len(sequence.steps) == 1)
    assert list(run) == []
    assert run.summary.finish_reason == "interrupted"
    assert run.summary.new_tokens == 0


def test_an_interrupt_in_a_step_leaves_the_engine_usable():
    presses = [3]

    def interrupt(count):
        if count in presses:
            presses.remove(count)
            signal.raise_signal(signal.SIGINT)

    sequence = FakeSequence(STORY, before_step=interrupt)
    run = start(sequence)
    with pytest.raises(KeyboardInterrupt):
        text_of(run)
    assert bytes(run.token_ids) == b" up"
    assert run.summary.finish_reason == "interrupted"
    assert text_of(run) == "on a time", "it goes on, if that is wanted"
    assert text_of(start(sequence)) == " upon a time"


def test_the_summary_counts_what_ran():
    sequence = FakeSequence(STORY)
    text_of(start(sequence))
    run = start(sequence, max_tokens=4)
    text_of(run)
    summary = run.summary
    assert (summary.prompt_tokens, summary.reused_tokens) == (5, 4)
    assert (summary.new_tokens, summary.decode_steps) == (4, 3)
    assert 0.0 < summary.prefill_seconds <= summary.first_token_seconds
    assert summary.prefill_rate == pytest.approx(1 / summary.prefill_seconds)
    assert summary.decode_rate == pytest.approx(3 / summary.decode_seconds)


def test_an_untouched_run_costs_nothing_and_has_no_rates():
    sequence = FakeSequence(STORY)
    summary = start(sequence).summary
    assert sequence.steps == []
    assert (summary.prefill_rate, summary.decode_rate) == (0.0, 0.0)


class TwoFavourites(FakeSequence):
    def _row(self, ids):
        row = np.zeros(self.vocab_size, dtype=np.float32)
        row[[65, 66]] = 10.0, 9.0
        return row


def test_the_repeat_penalty_sees_prompt_and_reply():
    run = start(TwoFavourites(STORY), [65], repeat_penalty=2.0, repeat_last_n=1, max_tokens=3)
    list(run)
    assert run.token_ids == [66, 65, 66]


@pytest.mark.parametrize("moment", range(1, 12))
def test_an_interrupted_step_costs_other_replies_nothing(moment):
    """Ctrl-C in the middle of a step over two replies ends the one whose reader was there."""

    left = [signal.SIGINT]

    def interrupt(count):
        if count == moment and left:
            signal.raise_signal(left.pop())

    def model_of(before_step):
        sequence = FakeSequence(lambda ids: None, chunk_size=16, before_step=before_step)
        return Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"))

    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 9, "ignore_eos": True}
    wanted = model_of(lambda count: None).stream("Twice", **fields).to_end().token_ids
    model = model_of(interrupt)
    first, second = model.stream("Once", **fields), model.stream("Twice", **fields)
    found, interrupted = [], 0
    for stream in itertools.cycle((first, second)):
        try:
            delta = next(stream, None)
        except KeyboardInterrupt:
            interrupted += 1
            first.close()
            continue
        if stream is second:
            if delta is None:
                break
            found += delta.ids
    assert (interrupted, found) == (1, wanted)


@pytest.mark.parametrize("name", ["logits", "next_logits"])
def test_ctrl_c_acts_between_two_steps_of_a_long_text(name):
    sequence = FakeSequence(STORY, before_step=lambda count: signal.raise_signal(signal.SIGINT))
    model = Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"))
    with pytest.raises(KeyboardInterrupt):
        getattr(model, name)([65] * 50)
    assert len(sequence.steps) == 1


def test_ctrl_c_acts_while_another_thread_has_the_model():
    run = start(FakeSequence(STORY))
    driver, taken, is_over = run._driver, threading.Event(), threading.Event()

    def take():
        with driver.exclusive():
            taken.set()
            is_over.wait(30)

    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    press = threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,))
    press.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(run)
        assert thread.is_alive()
    finally:
        is_over.set()
        thread.join()
    assert text_of(run) == " upon a time"


def test_a_stream_that_its_listener_holds_is_freed_at_its_end():
    run, ended = start(FakeSequence(STORY)), threading.Event()
    freed = weakref.ref(run)

    def post(event, _held=run):
        if event is None:
            ended.set()

    run.listen(post)
    assert ended.wait(30)
    del run, post
    gc.collect()
    assert freed() is None


def test_listeners_do_not_wait_beyond_an_error_that_is_none_of_ours(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: shown.append(hook.exc_value))

    faults, events, ended = [RuntimeError("a fault")], [], threading.Semaphore(0)

    def break_once(count):
        if faults:
            raise faults.pop()

    def post(event):
        events.append(event)
        if event is None:
            ended.release()

    sequence = FakeSequence(STORY, before_step=break_once)
    model = Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"))
    streams = [model.stream("Once", temperature=0.0) for _ in range(3)]
    with streams[0]._driver.exclusive():
        streams[0].listen(post)
        streams[1].listen(post)
    assert ended.acquire(timeout=30)
    assert ended.acquire(timeout=30)
    told = [str(event) for event in events if isinstance(event, TinychatError)]
    assert told == ["the reply broke off by RuntimeError: a fault"] * 2
    streams[2].listen(post)
    assert ended.acquire(timeout=30)
    assert streams[2].summary.finish_reason == "stop"
    assert [str(error) for error in shown] == ["a fault"]


def test_a_driver_that_is_dropped_goes_at_once():
    # With its sequences, whose blocks others want; garbage is collected later.
    gc.collect()
    gc.disable()
    try:
        stream = start(FakeSequence(STORY))
        assert text_of(stream) == " upon a time"
        gone = weakref.ref(stream._driver)
        del stream
        assert gone() is None
    finally:
        gc.enable()


def test_a_listener_that_fails_leaves_no_other_one_waiting(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda hook: None)
    sequence = FakeSequence(STORY)
    model = Model(sequence, ByteTokenizer(), None, frozenset({EOS}), Path("fake"))
    streams, events, ended = [model.stream("Once", temperature=0.0) for _ in range(2)], [], threading.Event()

    def fail(event):
        raise RuntimeError("a closed loop")

    def post(event):
        events.append(event)
        if event is None:
            ended.set()

    with streams[0]._driver.exclusive():
        streams[0].listen(fail)
        streams[1].listen(post)
    assert ended.wait(30)
    assert streams[0]._run.is_over and streams[1]._run.is_over
    assert len(streams[0]._driver) == 0


def test_a_stream_that_its_maker_of_room_holds_is_freed_at_its_end():
    streams = []
    streams.append(start(FakeSequence(STORY), make_room=lambda reply_ids, _held=streams: None))
    freed = weakref.ref(streams[0])
    assert text_of(streams[0]) == " upon a time"
    del streams
    gc.collect()
    assert freed() is None
