"""A program that uses all of the public interface, for mypy --strict: scripts/check.

Types must be known exactly (`assert_type`), and mistakes must be found: under --strict an ignored error that does not
occur is an error.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, assert_type

import numpy as np
from numpy.typing import NDArray

import tinychat
from tinychat import Chat, Delta, Message, Model, Reply, Request, TinychatError, errors


def convert(source: Path, target: Path) -> Path:
    made = tinychat.convert(source, target, "int8", 64, lambda done, total: None, method="plain", check=False)
    return assert_type(made, Path)


def stream(model: Model) -> str:
    replies = model.stream("Once upon a time", max_tokens=8, temperature=0.0, stop=("\n",), seed=None)
    texts = [assert_type(delta, Delta).text for delta in replies]
    assert_type(replies.token_ids, list[int])
    assert_type(replies.summary.decode_rate, float)
    return "".join(texts)


async def stream_async(model: Model, chat: Chat) -> AsyncIterator[str]:
    async for delta in model.astream("Once", max_tokens=4):
        yield assert_type(delta, Delta).text
    async for delta in chat.astream("Hello!"):
        yield delta.text


def generate(model: Model) -> list[Reply]:
    ids = assert_type(model.encode("The sky is", add_bos=True), list[int])
    assert_type(model.decode(model.generate(ids, max_tokens=4)), str)
    assert_type(model.logits(ids), NDArray[np.float32])
    assert_type(model.render([{"role": "user", "content": "hi"}], add_generation_prompt=True), str)
    replies = assert_type(model.generate_many(["One", ids], parallel=2, max_tokens=4, top_k=1), list[Reply])
    assert_type(replies[0].text, str)
    reason = Literal["stop", "stop_string", "length", "context", "loop", "interrupted"]
    assert_type(replies[0].finish_reason, reason | None)
    return replies


def converse(model: Model) -> list[Message]:
    with Chat(model, "Be brief.", overflow="drop", temperature=0.0, max_tokens=8) as chat:
        assert_type(chat.say("Hello!"), str)
        for delta in chat.stream("And again?", cancelled=lambda: False):
            assert_type(delta, Delta)
        chat.undo()
        assert_type(chat.request, Request)
        assert_type(chat.tokens_in_use(), int)
        return assert_type(chat.messages, list[Message])


def main(name: str) -> None:
    with tinychat.load(name, context=256, threads=1, kv=None, draft=False) as model:
        assert_type(model, Model)
        assert_type(model.context_size, int)
        stream(model)
        generate(model)
        converse(model)
    try:
        Request(temperature=-1.0)
    except errors.FieldError as error:
        assert_type(error.field, str)
    except TinychatError as error:
        assert_type(str(error), str)


def mistakes(model: Model) -> None:
    model.stream("Once", temprature=0.0)  # type: ignore[call-arg]
    model.stream("Once", max_tokens="many")  # type: ignore[arg-type]
    Chat(model, loop_stop=1.5)  # type: ignore[arg-type]
    Request(top_k="40")  # type: ignore[arg-type]
    tinychat.load("demo", contxt=64)  # type: ignore[call-arg]
    tinychat.lode("demo")  # type: ignore[attr-defined]
