"""Models come when they are asked for, and go when nobody uses them."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

from tinychat.serve.model_pool import ModelPool


def pool_of(names, **options):
    """Return a pool of things that can be closed, and the names of those that were."""
    closed = []

    def load(name):
        return SimpleNamespace(path=Path(name), close=lambda: closed.append(name)), None

    return ModelPool({name: lambda name=name: load(name) for name in names}, **options), closed


async def hold(pool, name, idle_seconds=None):
    async with pool.use(name) as served:
        if idle_seconds is not None:
            served.idle_seconds = idle_seconds


def test_models_may_go_while_another_one_goes():
    """One that made room in the meantime is not unloaded a second time, and others still are."""
    reached, go = threading.Event(), threading.Event()

    def wait_for_the_first(model):
        if model.path.name == "a":
            reached.set()
            assert go.wait(30)

    async def unload():
        pool, closed = pool_of("abcd", most_loaded=2, idle_seconds=1e-3, on_unload=wait_for_the_first)
        await hold(pool, "a")
        await hold(pool, "b")
        unloading = asyncio.ensure_future(pool.unload_idle())
        assert await asyncio.to_thread(reached.wait, 30)
        # Beside the one that goes there is room for one more, and then for none.
        await hold(pool, "c")
        await hold(pool, "d")
        go.set()
        async with asyncio.timeout(30):
            while pool.loaded:
                await asyncio.sleep(0.001)
        assert not unloading.done()
        unloading.cancel()
        assert sorted(closed) == ["a", "b", "c", "d"]

    asyncio.run(unload())


def test_the_last_user_of_a_model_that_is_not_to_stay_unloads_it():
    async def use():
        pool, closed = pool_of("a")
        async with pool.use("a") as served:
            await hold(pool, "a", idle_seconds=0)
            assert pool.loaded == [served] and closed == []
        assert pool.loaded == [] and closed == ["a"]
        await hold(pool, "a")
        assert [one.name for one in pool.loaded] == ["a"] and closed == ["a"]

    asyncio.run(use())


def test_one_model_more():
    async def use():
        pool, _ = pool_of("a")
        await hold(pool, "any name")
        pool.add("b", lambda: (SimpleNamespace(path=Path("b"), close=lambda: None), None), Path("somewhere"))
        pool.add("a", lambda: None, Path("elsewhere"))
        assert pool.names == ["a", "b"] and pool.paths == {"a": Path("a"), "b": Path("somewhere")}
        await hold(pool, "library/b:latest")
        assert pool.paths["b"] == Path("b")

    asyncio.run(use())
