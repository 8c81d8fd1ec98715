"""``/v1/embeddings``: vectors of texts in OpenAI's form; and vectors of texts for endpoints of other protocols."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tinychat.errors import FieldError
from tinychat.generate.embeddings import Steps, Vector, shortest_floats
from tinychat.generate.model import Model
from tinychat.models.embedder import POOLINGS
from tinychat.serve import body_fields
from tinychat.serve.answering import unless_gone
from tinychat.serve.bodies import read_object
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.server import Server, client_of
from tinychat.serve.wire import Payload

ENCODINGS = ("float", "base64")
MOST_INPUTS = 2048
_FORMS = f"must be a text, a list of up to {MOST_INPUTS} texts, token ids, or a list of these"


class Embedded(NamedTuple):
    """Vectors of texts, float32 [dimensions], of length 1; and how many tokens each text has."""

    vectors: list[Vector]
    counts: list[int]


async def embed_texts(
    server: Server,
    http: HttpRequest,
    served: ServedModel,
    texts: Sequence[str | list[int]],
    *,
    pooling: str | None = None,
    prompt: str | None = None,
    dimensions: int | None = None,
    cuts: bool = False,
) -> Embedded:
    """Return the vectors of texts or token ids, in a turn of the client's.

    Parameters
    ----------
    server, http
        The request that asks for them: if its client goes away, the work ends after a step.
    served : ServedModel
        Held by `Server.use`.
    texts : sequence of str or list of int
    pooling, prompt, dimensions : optional
        See `Model.embed`.
    cuts : bool
        Whether the end of a text that is longer than the context is left out; else it is refused.

    Raises
    ------
    TinychatError
        If a text cannot be embedded, the queue is full, the server is ending, or the client is gone.
    """
    ids = await asyncio.to_thread(lambda: [_ids_of(served.model, text, prompt, cuts) for text in texts])
    steps = await asyncio.to_thread(served.model.embedding.steps, ids, pooling, dimensions)
    return await run_steps(server, http, served, steps, [len(each) for each in ids])


async def run_steps(
    server: Server, http: HttpRequest, served: ServedModel, steps: Steps, counts: list[int]
) -> Embedded:
    """Run the steps of texts of so many tokens in a turn of the client's; errors are those of `embed_texts`."""
    vectors = await unless_gone(http, _in_turn(server, client_of(http), served.name, steps))
    server.metrics.prompt_tokens_total += sum(counts)
    return Embedded(vectors, counts)


def _ids_of(model: Model, text: str | list[int], prompt: str | None, cuts: bool) -> list[int]:
    ids = text if isinstance(text, list) else model.embedding.text_ids(text, prompt)
    if cuts and len(ids) > model.context_size:
        end = [] if isinstance(text, list) else model.tokenizer.suffix_ids
        return [*ids[: model.context_size - len(end)], *end]
    return ids


async def _in_turn(server: Server, client: str, model: str, steps: Steps) -> list[Vector]:
    """Run steps in threads, one after the other, so that others get theirs between them."""
    found: list[Vector] = []
    async with server.turn(client, model, ()):
        began = perf_counter()
        try:
            while (vectors := await _to_its_end(partial(next, steps, None))) is not None:
                found += vectors
        finally:
            server.metrics.prompt_seconds_total += perf_counter() - began
            await asyncio.to_thread(steps.close)
    return found


async def _to_its_end(step: Callable[[], list[Vector] | None]) -> list[Vector] | None:
    """Run a step in a thread; where this is cancelled, wait for its end: the model must not be closed under it."""
    running = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.gather(running, return_exceptions=True)


class _EmbeddingsBody(NamedTuple):
    """A body that was read."""

    texts: list[str | list[int]]
    encoding: str
    pooling: str | None
    prompt: str | None
    dimensions: int | None


def _read(body: Payload, model: Model) -> _EmbeddingsBody:
    """Read a body; FieldError for what cannot be answered."""
    asked = _EmbeddingsBody(
        _take_input(body),
        _take_choice(body, "encoding_format", ENCODINGS) or ENCODINGS[0],
        _take_choice(body, "pooling", POOLINGS),
        body.pop("prompt", None),
        body_fields.take_dimensions(body, model),
    )
    if not isinstance(asked.prompt, str | None):
        raise FieldError("prompt", "must be the name of a prompt")
    body_fields.refuse_others(body)
    return asked


def _take_input(body: Payload) -> list[str | list[int]]:
    """Take out ``input`` as a list of texts or token ids."""
    value = body.pop("input", None)
    found = value if isinstance(value, list) and not _are_ids(value) else [value]
    if not 1 <= len(found) <= MOST_INPUTS or not all(isinstance(one, str) or _are_ids(one) for one in found):
        raise FieldError("input", _FORMS)
    if not all(found):
        raise FieldError("input", "must not have an empty text")
    return found


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _take_choice(body: Payload, name: str, known: tuple[str, ...]) -> str | None:
    value = body.pop(name, None)
    if value is None or (isinstance(value, str) and value in known):
        return value
    raise FieldError(name, f"must be one of {', '.join(known)}")


async def answer_embeddings(server: Server, http: HttpRequest) -> Response:
    """Answer a request for embeddings; `TinychatError` if it cannot be answered."""
    server.metrics.requests_total += 1
    body = await read_object(http)
    async with server.use(body.pop("model", None)) as served:
        asked = await asyncio.to_thread(_read, body, served.model)
        found = await embed_texts(
            server,
            http,
            served,
            asked.texts,
            pooling=asked.pooling,
            prompt=asked.prompt,
            dimensions=asked.dimensions,
        )
        shown = server.shown_name(served)
    tokens = sum(found.counts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    items = (
        {"object": "embedding", "index": index, "embedding": _encoded(vector, asked.encoding)}
        for index, vector in enumerate(found.vectors)
    )
    return await list_response({"object": "list", "model": shown, "usage": usage}, "data", items)


async def list_response(head: Payload, name: str, items: Iterable[object]) -> Response:
    """Return the answer that has a list of this name after the fields of its head.

    Thousands of vectors take seconds to write down: items are made and encoded one by one in a thread, so that other
    threads run between them.
    """
    encoded = await asyncio.to_thread(lambda: ", ".join(json.dumps(item) for item in items))
    text = f'{json.dumps(head).removesuffix("}")}, "{name}": [{encoded}]}}'
    return Response(text, media_type="application/json")


def _encoded(vector: Vector, encoding: str) -> str | list[float]:
    """Return a vector as numbers, or as the base64 of little-endian float32."""
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return shortest_floats(vector)
