"""``POST /api/embed``, and its older form ``/api/embeddings``: vectors of texts in Ollama's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from time import perf_counter

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tinychat.errors import FieldError
from tinychat.generate.embeddings import shortest_floats
from tinychat.serve import body_fields
from tinychat.serve.bodies import read_object
from tinychat.serve.embeddings import MOST_INPUTS, Embedded, embed_texts, list_response
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.ollama import keep, nanoseconds
from tinychat.serve.ollama_body import take_keep_alive
from tinychat.serve.server import Server
from tinychat.serve.wire import Payload


async def answer_embed(server: Server, http: HttpRequest) -> Response:
    """Answer a request for the vectors of ``input``, a text or a list of texts.

    `TinychatError` if it cannot be answered.
    """
    started = perf_counter()
    body = await read_object(http)
    async with server.use(body.pop("model", None)) as served:
        loaded = perf_counter()
        found = await _embedded(server, http, served, body, _take_input(body))
        head = {
            "model": server.shown_name(served),
            "total_duration": nanoseconds(perf_counter() - started),
            "load_duration": nanoseconds(loaded - started),
            "prompt_eval_count": sum(found.counts),
        }
        return await list_response(head, "embeddings", map(shortest_floats, found.vectors))


async def answer_embedding(server: Server, http: HttpRequest) -> Response:
    """Answer a request for the vector of ``prompt``; errors are those of `answer_embed`."""
    body = await read_object(http)
    async with server.use(body.pop("model", None)) as served:
        prompt = body_fields.take_text(body, "prompt")
        found = await _embedded(server, http, served, body, [prompt] if prompt else [])
        vector = shortest_floats(found.vectors[0]) if prompt else []
        return Response(json.dumps({"embedding": vector}), media_type="application/json")


async def _embedded(
    server: Server, http: HttpRequest, served: ServedModel, body: Payload, texts: Sequence[str]
) -> Embedded:
    """Return the vectors of texts as the rest of a body asks for them; without texts the model is only loaded."""
    cuts, seconds = body_fields.take_bool(body, "truncate", True), take_keep_alive(body)
    body_fields.take_object(body, "options")
    dimensions = body_fields.take_dimensions(body, served.model)
    body_fields.refuse_others(body)
    keep(served, seconds)
    server.metrics.requests_total += 1
    if not texts:
        return Embedded([], [])
    return await embed_texts(server, http, served, texts, dimensions=dimensions, cuts=cuts)


def _take_input(body: Payload) -> list[str]:
    """Take out ``input``; an empty one only loads the model."""
    value = body.pop("input", [])
    texts = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > MOST_INPUTS or not all(isinstance(one, str) for one in texts):
        raise FieldError("input", f"must be a text, or a list of up to {MOST_INPUTS} texts")
    if not all(texts):
        raise FieldError("input", "must not have an empty text")
    return texts
