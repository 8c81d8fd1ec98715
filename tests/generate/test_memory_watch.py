"""A cache that becomes smaller while memory is short, and its replies, which stay the same."""

import asyncio

import engines
import pytest
from fake_model import fake_model
from generate.test_driver import draw_prompts, reply_to, written, written_alone

from tinychat.engine.sequence import new_sequence
from tinychat.generate import memory_watch
from tinychat.generate.driver import Driver
from tinychat.generate.idle_sequences import IdleSequences
from tinychat.generate.memory_watch import LOOKS_UNTIL_GROWTH, SECONDS_BETWEEN, MemoryWatch

CONTEXT = 400
WHY = "only 12 MiB of memory are free"


@pytest.fixture(scope="module")
def folder(folders):
    return folders("qwen3-window")


@pytest.fixture
def shortage(monkeypatch):
    """A list whose last element is what the system tells; the looks at it are counted by its length."""
    told = []

    def look():
        told.append(told[-1] if told else None)
        return told[-1]

    monkeypatch.setattr(memory_watch, "memory_shortage", look)
    return told


@pytest.fixture
def driver(folder):
    """A driver that has written some replies, whose prompts are cached."""
    engine = engines.open_engine(folder, threads=1)
    made = Driver(new_sequence(engine, CONTEXT))
    written(made, [reply_to(ids, max_tokens=1) for ids in draw_prompts(engine, (300, 200, 130, 70, 66, 150))])
    return made


def test_replies_stay_the_same_and_the_cache_becomes_smaller(driver, shortage):
    prompts = draw_prompts(driver.engine, (300, 90, 8))
    alone = [written_alone(driver.engine, ids) for ids in prompts]
    before, told = driver.engine.pool.used, []
    driver.memory_watch = MemoryWatch()
    driver.memory_watch.on_notice = told.append
    shortage.append(WHY)
    replies = [reply_to(ids) for ids in prompts]
    written(driver, replies)
    assert [reply.token_ids for reply in replies] == alone
    assert driver.engine.pool.used < before
    assert len(told) == 1
    assert told[0].startswith(f"{WHY}: the cache of earlier texts is now ")


def test_it_looks_seldom_and_speaks_once(driver, shortage):
    pool, watch, told, idle = driver.engine.pool, MemoryWatch(), [], IdleSequences()
    watch.on_notice = told.append
    watch.look(0.0, driver.engine, idle)
    watch.look(SECONDS_BETWEEN / 2, driver.engine, idle)
    assert (shortage, told) == ([None], [])
    shortage[-1] = WHY
    used = [pool.used]
    for second in range(1, 4):
        watch.look(second * SECONDS_BETWEEN, driver.engine, idle)
        used.append(pool.used)
    assert used[0] > used[1] > used[2] >= used[3]
    assert len(told) == 1


def test_the_cache_grows_again_when_there_was_memory_for_long(driver, shortage):
    pool, watch = driver.engine.pool, MemoryWatch()
    limit = pool._limit
    shortage.append(WHY)
    watch.look(0.0, driver.engine, IdleSequences())
    assert pool._limit < limit
    shortage[-1] = None
    for look in range(1, LOOKS_UNTIL_GROWTH + 1):
        assert pool._limit < limit
        watch.look(look * SECONDS_BETWEEN, driver.engine, IdleSequences())
    assert pool._limit == limit


def test_a_notice_is_a_line_of_stderr(capsys):
    memory_watch.write_notice(WHY)
    assert capsys.readouterr() == ("", f"tinychat: {WHY}\n")


def test_a_chat_and_a_server_show_the_notices_of_their_models(tmp_path):
    from tinychat.commands.chat import _with_notices
    from tinychat.serve.running import create_server
    from tinychat.serve.server import ServerOptions

    told = []
    model = fake_model(lambda ids: 65)
    assert _with_notices(lambda name, settings: model, told.append)(None, None) is model
    model.driver.memory_watch.on_notice("first")
    server, _ = create_server({"demo": lambda: (model, None)}, ServerOptions(), told.append)

    async def notify():
        async with server.use("demo") as served:
            served.model.driver.memory_watch.on_notice("second")

    asyncio.run(notify())
    assert told == ["first", "second"]
