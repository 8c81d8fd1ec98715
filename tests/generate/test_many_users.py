"""Any number of streams, chats and threads on one model: each has the tokens that it has alone."""

import asyncio
import gc
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinychat
from tinychat.errors import FieldError, SettingError

pytestmark = pytest.mark.slow

PROMPTS = ("Once upon a time", "The sea is", "A list of three colours: red,", "Once upon a hill", "def main():")
FIELDS = {"max_tokens": 24, "seed": 7}


@pytest.fixture(scope="module")
def alone():
    """Return the tokens of each prompt's reply in a model that writes nothing else."""
    with tinychat.load("demo", context=256) as model:
        return {prompt: model.stream(prompt, **FIELDS).to_end().token_ids for prompt in PROMPTS}


@pytest.fixture
def model():
    with tinychat.load("demo", context=256) as model:
        yield model
        assert runs_left(model) == 0
        pool = model.engine.pool
    gc.collect()
    assert pool.used == len(pool.prefixes), "all blocks but those that are kept for later prompts are free"


def runs_left(model):
    """Return how many runs there are once those without readers have ended, with the next step."""
    model.driver.step()
    return len(model.driver)


def token_ids(stream):
    return [token_id for delta in stream for token_id in delta.ids]


def test_interleaved_streams(model, alone):
    streams = {prompt: model.stream(prompt, **FIELDS) for prompt in PROMPTS}
    found = {prompt: [] for prompt in PROMPTS}
    waiting = dict(streams)
    while waiting:
        for prompt, stream in [*waiting.items()]:
            delta = next(stream, None)
            if delta is None:
                del waiting[prompt]
            else:
                found[prompt] += delta.ids
    assert found == alone
    assert {prompt: stream.token_ids for prompt, stream in streams.items()} == alone


def test_a_reply_inside_another(model, alone):
    outer, inner = PROMPTS[:2]
    found = []
    for number, delta in enumerate(model.stream(outer, **FIELDS)):
        found += delta.ids
        if number % 5 == 0:
            assert token_ids(model.stream(inner, **FIELDS)) == alone[inner]
    assert found == alone[outer]


def test_chats_on_one_model_do_not_mix(model):
    def said(chat, *questions):
        return [chat.say(question) for question in questions]

    questions = ("Hello!", "And you?", "Why?")
    chats = [tinychat.Chat(model, max_tokens=16, seed=seed) for seed in range(4)]
    wanted = [said(tinychat.Chat(model, max_tokens=16, seed=seed), *questions) for seed in range(4)]
    found = [[] for _ in chats]
    for question in questions:
        for chat, replies in zip(chats, found):
            replies.append("")
            outer = chat.stream(question)
            other = tinychat.Chat(model, max_tokens=4, seed=9)
            for delta in outer:
                replies[-1] += delta.text
                if not other.messages:
                    other.say("Hm?")
    assert found == wanted


def test_threads(model):
    questions = ("Hello!", "And you?")

    def said(seed):
        chat = tinychat.Chat(model, max_tokens=20, seed=seed, temperature=1.0)
        return [chat.say(question) for question in questions]

    wanted = [said(seed) for seed in range(8)]
    found = [None] * 8

    def work(seed):
        found[seed] = said(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == wanted


def test_streams_that_are_dropped_half_read(model, alone):
    for prompt in PROMPTS:
        stream = model.stream(prompt, **FIELDS)
        next(stream)
        del stream
    gc.collect()
    assert runs_left(model) == 0
    assert token_ids(model.stream(PROMPTS[0], **FIELDS)) == alone[PROMPTS[0]]


def test_a_stream_that_is_closed_ends(model, alone):
    stream = model.stream(PROMPTS[0], **FIELDS)
    begun = [*next(stream).ids]
    stream.close()
    assert next(stream, None) is None
    assert stream.summary.finish_reason == "interrupted"
    assert stream.token_ids == begun == alone[PROMPTS[0]][: len(begun)]


def test_event_loops(model, alone):
    async def written(prompt):
        found = []
        async for delta in model.astream(prompt, **FIELDS):
            found += delta.ids
        return found

    async def all_of_them():
        dropped = model.astream(PROMPTS[0], **FIELDS)
        await anext(dropped)
        await dropped.aclose()
        return await asyncio.gather(*(written(prompt) for prompt in PROMPTS))

    assert asyncio.run(all_of_them()) == [alone[prompt] for prompt in PROMPTS]


def test_an_event_loop_beside_a_thread(model, alone):
    found = []
    thread = threading.Thread(target=lambda: found.append(token_ids(model.stream(PROMPTS[1], **FIELDS))))

    async def written():
        thread.start()
        return [token_id async for delta in model.astream(PROMPTS[0], **FIELDS) for token_id in delta.ids]

    assert asyncio.run(written()) == alone[PROMPTS[0]]
    thread.join()
    assert found == [alone[PROMPTS[1]]]


def test_a_closed_model():
    model = tinychat.load("demo", context=256)
    stream = model.stream(PROMPTS[0], **FIELDS)
    next(stream)
    model.close()
    assert list(stream) in ([], [stream.reply._deltas[-1]])
    for use in (
        lambda: next(model.stream("x")),
        lambda: model.logits([1]),
        lambda: model.generate_many(["x"]),
        lambda: tinychat.Chat(model).say("x"),
    ):
        with pytest.raises(SettingError, match="the model is closed: load it again"):
            use()
    model.close()


def test_a_closed_model_in_an_event_loop():
    model = tinychat.load("demo", context=256)

    async def refused():
        stream = model.astream("x", **FIELDS)
        model.close()
        with pytest.raises(SettingError, match="the model is closed: load it again"):
            await anext(stream)
        await stream.aclose()

    asyncio.run(refused())


def test_a_stream_in_an_event_loop_that_was_closed_before_it_began(model):
    async def deltas():
        stream = model.astream("x", **FIELDS)
        await stream.aclose()
        return [delta async for delta in stream]

    assert asyncio.run(asyncio.wait_for(deltas(), 60)) == []


def test_wrong_arguments(model):
    with pytest.raises(FieldError, match="prompts must be a list of texts or token ids, not one text"):
        model.generate_many("text")
    with pytest.raises(FieldError, match="parallel must be 1 or more, not 0"):
        model.generate_many(["text"], parallel=0)


ACTIONS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["next", "next", "next", "drop", "close", "new"])))


@given(ACTIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_any_streams(model, alone, actions):
    streams, found = {}, {}
    for number, action in actions:
        prompt = PROMPTS[number % len(PROMPTS)]
        if action == "new" or number not in streams:
            streams[number], found[number] = model.stream(prompt, **FIELDS), []
        elif action == "next":
            delta = next(streams[number], None)
            found[number] += delta.ids if delta else ()
        elif action == "close":
            streams[number].close()
        else:
            del streams[number]
    for number, stream in streams.items():
        found[number] += token_ids(stream)
    for number, ids in found.items():
        wanted = alone[PROMPTS[number % len(PROMPTS)]]
        assert ids == wanted[: len(ids)]
    streams.clear()


def test_a_wrong_keyword_names_the_nearest(model):
    for call in (model.stream, model.astream, lambda _, **fields: tinychat.Chat(model, **fields)):
        with pytest.raises(TypeError, match=r"^unknown keyword 'tempreature': did you mean temperature\?$"):
            call("x", tempreature=1)


def test_what_is_offered_for_completion_is_there_and_documented(model):
    assert repr(model) == "<Model demo>"
    for name in dir(model):
        assert getattr(model, name) is not None
        assert getattr(type(model), name, None) is None or getattr(type(model), name).__doc__


def test_chats_in_an_event_loop(model):
    wanted = [tinychat.Chat(model, max_tokens=16, seed=seed).say("Hello!") for seed in range(4)]

    async def said(seed):
        chat = tinychat.Chat(model, max_tokens=16, seed=seed)
        return "".join([delta.text async for delta in chat.astream("Hello!")])

    async def all_of_them():
        deltas = tinychat.Chat(model, seed=1).astream("Hello!")
        await anext(deltas)
        await deltas.aclose()
        return await asyncio.gather(*map(said, range(4)))

    assert asyncio.run(all_of_them()) == wanted


def test_a_closed_chat(model):
    with tinychat.Chat(model, seed=1) as chat:
        deltas = chat.stream("Tell me a story.")
        next(deltas)
        assert repr(chat) == "<Chat with demo, 2 messages>"
    assert list(deltas) == []
    assert chat.messages[-1].partial
    with pytest.raises(SettingError, match="the conversation is closed: begin another one"):
        chat.say("Hello!")
    assert all(hasattr(chat, name) for name in dir(chat))


def test_a_prompt_that_is_half_read_holds_nobody_up_that_begins_alike(model):
    prompt = model.encode(" ".join(PROMPTS) * 3)
    wanted = model.stream([*prompt, 300], **FIELDS).to_end().token_ids
    model.sequence.release()
    stream = model.stream(prompt, **FIELDS)
    stream.start()
    model.driver.step()
    assert token_ids(model.stream([*prompt, 300], **FIELDS)) == wanted
    stream.close()
