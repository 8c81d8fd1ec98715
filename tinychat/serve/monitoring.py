"""Endpoints about the server itself: ``/health``, ``/models``, ``/props``, ``/slots`` and ``/metrics``."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tinychat.generate.model import Model
from tinychat.generate.stream import Stream
from tinychat.serve.api_error import ApiError
from tinychat.serve.llama_fields import setting_fields
from tinychat.serve.server import Server
from tinychat.serve.slots import Slot
from tinychat.serve.wire import Payload


async def health(server: Server, _http: HttpRequest) -> Response:
    """Answer whether requests are served; with 503 while a model is loaded, or the server ends."""
    if server.is_ending:
        raise ApiError(503, "the server is ending", "unavailable_error", code="ending")
    if server.pool.loading and not server.pool.loaded:
        raise ApiError(503, "Loading model", "unavailable_error", code="loading")
    return JSONResponse({"status": "ok"})


async def models(server: Server, _http: HttpRequest) -> Response:
    """List the models that are served, in OpenAI's form and Anthropic's; those in memory have a `meta`."""
    loaded = {served.name: served.model for served in server.pool.loaded}
    data = [_model_fields(server, name, loaded.get(name)) for name in server.pool.names]
    ends = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return JSONResponse({"object": "list", "data": data, **ends})


async def model(server: Server, http: HttpRequest) -> Response:
    """Describe one of the models as `models` does."""
    asked, pool = http.path_params["name"], server.pool
    name = pool.names[0] if asked == server.options.alias else pool.find(asked)
    loaded = {served.name: served.model for served in pool.loaded}
    return JSONResponse(_model_fields(server, name, loaded.get(name)))


def _model_fields(server: Server, name: str, model: Model | None) -> Payload:
    meta = model and {
        "n_vocab": model.vocab_size,
        "n_ctx": model.context_size,
        "n_ctx_train": model.trained_length,
    }
    shown = server.options.alias or name
    return {
        "id": shown,
        "object": "model",
        "type": "model",
        "display_name": shown,
        "created": server.started,
        "created_at": datetime.fromtimestamp(server.started, UTC).isoformat(),
        "owned_by": "tinychat",
        "architecture": {
            "input_modalities": ["text", *["image"] * (model is not None and model.sees_images)],
            "output_modalities": ["text"],
        },
        "meta": meta,
    }


async def props(server: Server, http: HttpRequest) -> Response:
    """Describe a model, and how requests are answered that say nothing else; ``?model=`` names it."""
    async with server.use(http.query_params.get("model")) as served:
        model = served.model
        tokenizer = model.tokenizer
        params = setting_fields(served.defaults, model.context_size)
        return JSONResponse(
            {
                "default_generation_settings": {"n_ctx": model.context_size, "params": params},
                "total_slots": server.admission.parallel,
                "model_alias": server.shown_name(served),
                "model_path": str(model.path),
                "chat_template": "" if model.template.is_fallback else model.template.source,
                "bos_token": tokenizer.bos_token or "",
                "eos_token": tokenizer.eos_token or "",
                "modalities": {"vision": model.sees_images, "audio": False},
                "build_info": f"tinychat {version('tinychat')}",
                "is_sleeping": False,
            }
        )


async def slots(server: Server, http: HttpRequest) -> Response:
    """List the slots and what they run; with ``?fail_on_no_slot=1`` the status is 503 where none is free."""
    admission = server.admission
    if http.query_params.get("fail_on_no_slot") == "1" and admission.running >= admission.parallel:
        raise ApiError(503, "no slot available", "unavailable_error", code="no_slot")
    sizes = {served.name: served.model for served in server.pool.loaded}
    return JSONResponse([_slot_fields(slot, sizes.get(slot.model)) for slot in admission.slots])


def _slot_fields(slot: Slot, model: Model | None) -> Payload:
    size = 0 if model is None else model.context_size
    fields: dict[str, Any] = {
        "id": slot.number,
        "id_task": slot.task,
        "n_ctx": size,
        "speculative": model is not None and model.driver.drafts is not None,
        "is_processing": slot.is_processing,
    }
    for stream in slot.streams[:1]:
        request = stream.reply.request
        fields |= {"params": setting_fields(request, size), "next_token": _progress(stream)}
    return fields


def _progress(stream: Stream) -> Payload:
    """Return how far a reply is."""
    reply = stream.reply
    written, most = len(reply.token_ids), reply.request.max_tokens
    return {
        "has_next_token": reply.finish_reason is None,
        "has_new_line": "\n" in reply.text,
        "n_remain": -1 if most is None else most - written,
        "n_decoded": written,
    }


async def metrics(server: Server, _http: HttpRequest) -> Response:
    """Return counters and gauges for Prometheus."""
    admission = server.admission
    text = server.metrics.text(requests_processing=admission.running, requests_deferred=admission.waiting)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
