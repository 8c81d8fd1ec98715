"""``/v1/rerank``: documents in the order of how well they answer a query.

In the form of Jina's and Cohere's servers, which llama-server and vLLM have taken over; a body with ``texts`` gets that
of Hugging Face's text-embeddings-inference.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.errors import FieldError
from tinychat.generate.embeddings import shortest_floats
from tinychat.generate.ranking import ranked
from tinychat.serve import body_fields
from tinychat.serve.bodies import read_object
from tinychat.serve.embeddings import run_steps
from tinychat.serve.server import Server
from tinychat.serve.wire import Payload

MOST_DOCUMENTS = 1000
_FORM = f"must be a list of 1 to {MOST_DOCUMENTS} texts, or objects with a text"


class _RerankBody(NamedTuple):
    """A body that was read."""

    query: str
    documents: list[str]
    top: int | None
    returns_documents: bool
    instruction: str | None
    is_of_tei: bool
    is_raw: bool
    cuts: bool


def _read(body: Payload) -> _RerankBody:
    """Read a body; FieldError for what cannot be answered."""
    is_of_tei = "texts" in body
    if is_of_tei and "documents" in body:
        raise FieldError("texts", "does not go with documents: they are the same in another server's form")
    query = body_fields.take_text(body, "query")
    if not query:
        raise FieldError("query", "must be a text")
    documents = _take_documents(body, "texts" if is_of_tei else "documents")
    top = body_fields.take_integer(body, "top_n", 1, 1 << 40)
    shown = "return_text" if is_of_tei else "return_documents"
    instruction = body_fields.take_text(body, "instruction") or None
    asked = _RerankBody(
        query,
        documents,
        top,
        body_fields.take_bool(body, shown),
        instruction,
        is_of_tei,
        body_fields.take_bool(body, "raw_scores"),
        body_fields.take_bool(body, "truncate"),
    )
    body_fields.refuse_others(body)
    return asked


def _take_documents(body: Payload, name: str) -> list[str]:
    """Take out the documents, texts or objects of the form ``{"text": ...}``."""
    value = body.pop(name, None)
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_DOCUMENTS:
        raise FieldError(name, _FORM)
    found = [one.get("text") if isinstance(one, dict) else one for one in value]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise FieldError(name, _FORM)
    return texts


async def answer_rerank(server: Server, http: HttpRequest) -> Response:
    """Answer a request to rank documents; `TinychatError` if it cannot be answered."""
    server.metrics.requests_total += 1
    body = await read_object(http)
    async with server.use(body.pop("model", None)) as served:
        asked = _read(body)
        ranking = served.model.ranking
        pairs = await asyncio.to_thread(ranking.pairs, asked.query, asked.documents, asked.instruction, asked.cuts)
        steps = await asyncio.to_thread(ranking.score_ids, pairs)
        found = await run_steps(server, http, served, steps, [len(pair.ids) for pair in pairs])
        shown = server.shown_name(served)
    order, scores, relevance = ranked(found.vectors)
    values = shortest_floats(scores if asked.is_raw else relevance)
    best = order[: asked.top]
    if asked.is_of_tei:
        return JSONResponse([_result(asked, index, "score", values[index]) for index in best])
    tokens = sum(found.counts)
    return JSONResponse(
        {
            "object": "list",
            "model": shown,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": [_result(asked, index, "relevance_score", values[index]) for index in best],
        }
    )


def _result(asked: _RerankBody, index: int, name: str, score: float) -> Payload:
    text = asked.documents[index]
    shown = ({"text": text} if asked.is_of_tei else {"document": {"text": text}}) if asked.returns_documents else {}
    return {"index": index, name: score} | shown
