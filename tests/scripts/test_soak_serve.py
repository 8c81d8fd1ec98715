"""The soak of the server, for some seconds, and what it would say of a server that is wrong."""

import asyncio

import pytest

pytest.importorskip("starlette", reason="the server needs the extra `serve`")
pytest.importorskip("uvicorn", reason="the server needs the extra `serve`")

import soak_serve

import tinychat


@pytest.fixture(scope="module")
def models():
    options = {"context": soak_serve.CONTEXT}
    with tinychat.load("demo", **options) as served, tinychat.load("demo", **options) as alone:
        yield served, alone


def test_nothing_is_left_behind_and_every_reply_is_right(models, capsys):
    soak = soak_serve.Soak(*models, seed=1)
    assert asyncio.run(soak_serve.trial(soak, 30)) == 0, capsys.readouterr().out
    assert soak.done["left"] and soak.done["streamed"] and soak.done["whole"]


def test_another_text_is_pointed_out(models, capsys, monkeypatch):
    with tinychat.load("demo", context=soak_serve.CONTEXT) as served:
        soak = soak_serve.Soak(served, models[1], seed=2)
        expected = soak._expected
        monkeypatch.setattr(soak, "_expected", lambda task: [text + "!" for text in expected(task)])
        assert asyncio.run(soak_serve.trial(soak, 4)) == 1
    assert "another text than the model's own" in capsys.readouterr().out


def test_a_turn_that_is_left_is_pointed_out(models):
    soak = soak_serve.Soak(*models, seed=1)
    server = soak_serve.Server(None, soak_serve.Admission(1, 1), soak_serve.Metrics())

    async def look():
        tasks = len(asyncio.all_tasks())
        assert soak_serve.left_behind(server, soak.alone, tasks) == []
        async with server.admission.turn("a"):
            other = asyncio.ensure_future(asyncio.sleep(9))
            found = soak_serve.left_behind(server, soak.alone, tasks)
            other.cancel()
        return found

    assert asyncio.run(look()) == ["1 turns, 0 in the queue, 0 replies", "1 tasks of the loop"]
