"""The routes of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from tinychat.errors import TinychatError
from tinychat.serve import monitoring, ollama_models
from tinychat.serve.answering import Answer, answer
from tinychat.serve.api_error import ApiError, as_api_error
from tinychat.serve.chat_completions import ChatAnswer
from tinychat.serve.completions import CompletionAnswer
from tinychat.serve.embeddings import answer_embeddings
from tinychat.serve.guard import Door, Guard
from tinychat.serve.infill import InfillAnswer
from tinychat.serve.llama_completion import LlamaAnswer
from tinychat.serve.messages import MessagesAnswer, count_tokens
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.ollama import answer_ollama, chat_fields, text_fields
from tinychat.serve.ollama_body import read_generate, read_ollama_chat
from tinychat.serve.ollama_embed import answer_embed, answer_embedding
from tinychat.serve.ollama_pull import pull
from tinychat.serve.openapi import openapi_document
from tinychat.serve.page import page_routes
from tinychat.serve.rerank import answer_rerank
from tinychat.serve.response_endpoints import count_input_tokens, delete_response, get_response, list_input_items
from tinychat.serve.response_store import ResponseStore
from tinychat.serve.responses import ResponsesAnswer
from tinychat.serve.server import Server
from tinychat.serve.slot_files import change_slot
from tinychat.serve.text_endpoints import answer_text, apply_template, detokenize, tokenize
from tinychat.serve.wire import Payload, wire_of

AnswerKind = Callable[[Payload, ServedModel, str], Answer]


def create_app(server: Server, door: Door) -> Starlette:
    """Return the ASGI application of a server."""
    routes = [
        *_both("/chat/completions", partial(_answered, server, ChatAnswer), "POST"),
        *_both("/completions", partial(_answered, server, CompletionAnswer), "POST"),
        *_both("/embeddings", partial(answer_embeddings, server), "POST"),
        *_both("/rerank", partial(answer_rerank, server), "POST"),
        *_both("/reranking", partial(answer_rerank, server), "POST"),
        *_both("/models", partial(monitoring.models, server), "GET"),
        *_both("/models/{name:path}", partial(monitoring.model, server), "GET"),
        *_both("/health", partial(monitoring.health, server), "GET"),
        *_both("/completion", partial(_answered, server, LlamaAnswer), "POST"),
        Route("/infill", partial(_answered, server, InfillAnswer), methods=["POST"]),
        *_both("/tokenize", partial(answer_text, tokenize, server), "POST"),
        *_both("/detokenize", partial(answer_text, detokenize, server), "POST"),
        *_both("/apply-template", partial(answer_text, apply_template, server), "POST"),
        *_responses(server),
        Route("/v1/messages", partial(_answered, server, MessagesAnswer), methods=["POST"]),
        Route("/v1/messages/count_tokens", partial(answer_text, count_tokens, server), methods=["POST"]),
        *_both("/props", partial(monitoring.props, server), "GET"),
        Route("/openapi.json", partial(_openapi, server), methods=["GET"]),
        *_ollama_routes(server),
        *page_routes(),
    ]
    if server.options.shows_slots:
        routes.append(Route("/slots", partial(monitoring.slots, server), methods=["GET"]))
        routes.append(Route("/slots/{number}", partial(change_slot, server), methods=["POST"]))
    if server.options.shows_metrics:
        routes.append(Route("/metrics", partial(monitoring.metrics, server), methods=["GET"]))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        unloading = asyncio.ensure_future(server.pool.unload_idle())
        try:
            yield
        finally:
            unloading.cancel()
            with suppress(asyncio.CancelledError):
                await unloading
            await server.pool.close()

    return Starlette(
        routes=routes,
        middleware=[
            # Before the guard: preflight requests carry no key, and pages that are let in may read what it refuses.
            Middleware(
                CORSMiddleware,
                allow_origins=door.origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                # Older browsers ask for a page of the internet that calls a server at home.
                allow_private_network=True,
            ),
            Middleware(Guard, door=door),
        ],
        lifespan=lifespan,
        exception_handlers={
            TinychatError: partial(_refused, server),
            HTTPException: partial(_not_served, server),
        },
    )


def _both(path: str, endpoint: Callable[..., object], method: str) -> list[Route]:
    """Return the routes of an endpoint with and without the version before its path."""
    return [Route(prefix + path, endpoint, methods=[method]) for prefix in ("/v1", "")]


def _responses(server: Server) -> list[Route]:
    """Return the routes of OpenAI's responses, which share a store."""
    store = ResponseStore()
    return [
        *_both("/responses", partial(_answered, server, partial(ResponsesAnswer, store)), "POST"),
        *_both("/responses/input_tokens", partial(answer_text, partial(count_input_tokens, store), server), "POST"),
        *_both("/responses/{response_id}", partial(get_response, store), "GET"),
        *_both("/responses/{response_id}", partial(delete_response, store), "DELETE"),
        *_both("/responses/{response_id}/input_items", partial(list_input_items, store), "GET"),
    ]


def _ollama_routes(server: Server) -> list[Route]:
    return [
        Route("/api/chat", partial(answer_ollama, read_ollama_chat, chat_fields, server), methods=["POST"]),
        Route("/api/generate", partial(answer_ollama, read_generate, text_fields, server), methods=["POST"]),
        Route("/api/embed", partial(answer_embed, server), methods=["POST"]),
        Route("/api/embeddings", partial(answer_embedding, server), methods=["POST"]),
        Route("/api/tags", partial(ollama_models.tags, server), methods=["GET"]),
        Route("/api/ps", partial(ollama_models.running, server), methods=["GET"]),
        Route("/api/version", ollama_models.version, methods=["GET"]),
        Route("/api/show", partial(ollama_models.show, server), methods=["POST"]),
        Route("/api/pull", partial(pull, server), methods=["POST"]),
    ]


async def _answered(server: Server, kind: AnswerKind, http: HttpRequest) -> Response:
    server.metrics.requests_total += 1
    return await answer(server, http, lambda body, served: kind(body, served, server.shown_name(served)))


async def _openapi(server: Server, _http: HttpRequest) -> Response:
    return JSONResponse(openapi_document(server.options.shows_slots, server.options.shows_metrics))


async def _refused(server: Server, http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, TinychatError)
    server.metrics.errors_total += 1
    found = as_api_error(error)
    headers = {} if found.retry_after is None else {"Retry-After": str(found.retry_after)}
    return JSONResponse(wire_of(http.url.path, http.headers).error(found), found.status, headers)


async def _not_served(server: Server, http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{http.method} {http.url.path[:200]} is not served: see docs/serve.md"
    headers = error.headers or {}
    if "Allow" in headers:
        # Its own list is of the first route of a path alone.
        routes = (route for route in http.app.routes if route.matches(http.scope)[0] is not Match.NONE)
        allowed = ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))
        headers = {**headers, "Allow": allowed}
        message = f"{http.url.path[:200]} takes {allowed}, not {http.method}: see docs/serve.md"
    answer = await _refused(server, http, ApiError(error.status_code, message, code="not_found"))
    answer.headers.update(headers)
    return answer
