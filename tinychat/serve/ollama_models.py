"""Ollama's endpoints about models: ``/api/tags``, ``/api/show``, ``/api/ps`` and ``/api/version``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from math import isinf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.errors import TinychatError
from tinychat.generate.model import Model
from tinychat.generate.request import Request
from tinychat.json_file import read_settings
from tinychat.models.architectures import read_config, weight_count
from tinychat.serve.api_error import ApiError
from tinychat.serve.bodies import read_object
from tinychat.serve.infill import infill_tokens
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.ollama import rfc3339
from tinychat.serve.server import Server
from tinychat.serve.wire import Payload
from tinychat.store.local import MANIFEST, number_format

# The version whose API this is: clients ask for one that has what they need.
API_VERSION = "0.12.11"
_FOR_EVER = datetime(9999, 12, 31, tzinfo=UTC)
_UNKNOWN: Payload = dict.fromkeys(("parent_model", "format", "family", "parameter_size", "quantization_level"), "")
_UNKNOWN |= {"families": []}
_SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")


class ModelFiles(NamedTuple):
    """The files of a model: their size in bytes, a digest that changes with them, and what its configuration says."""

    size: int
    digest: str
    changed: datetime
    details: Payload
    info: Payload


def model_files(path: Path | None) -> ModelFiles:
    """Look at the files of a model: a folder or a GGUF file; None where it is not known."""
    found = [] if path is None else [*_files(path)]
    size, changed = sum(one[1] for one in found), max((one[2] for one in found), default=0.0)
    digest = sha256(json.dumps([path is None or path.name, sorted(found)]).encode()).hexdigest()
    details, info = _described(path) if path is not None and path.is_dir() else ({"format": "gguf"}, {})
    return ModelFiles(size, digest, datetime.fromtimestamp(changed, UTC), _UNKNOWN | details, info)


def _files(path: Path) -> Iterator[tuple[str, int, float]]:
    """Yield name, bytes and time of each file, as far as they can be read."""
    with suppress(OSError):
        for one in [path] if path.is_file() else path.rglob("*"):
            if one.is_file():
                stat = one.stat()
                yield one.name, stat.st_size, stat.st_mtime


def _described(folder: Path) -> tuple[Payload, Payload]:
    """Return ``details`` and ``model_info`` of a folder, as far as its files tell."""
    with suppress(TinychatError):
        manifest, config = read_settings(folder / MANIFEST), read_config(folder / "config.json")
        family = str(read_settings(folder / "config.json").get("model_type", config.architecture))
        weights = weight_count(config)
        details = {
            "format": "tinychat" if manifest else "safetensors",
            "family": family,
            "families": [family],
            "parameter_size": _rounded(weights),
            "quantization_level": number_format(manifest),
        }
        info = {
            "general.architecture": family,
            "general.basename": folder.name,
            "general.parameter_count": weights,
            f"{family}.attention.head_count": config.num_attention_heads,
            f"{family}.attention.head_count_kv": config.num_key_value_heads,
            f"{family}.block_count": config.num_hidden_layers,
            f"{family}.embedding_length": config.hidden_size,
            f"{family}.feed_forward_length": config.intermediate_size,
            f"{family}.vocab_size": config.vocab_size,
        }
        return details, info
    return {}, {}


def _rounded(weights: int) -> str:
    """Return a number of weights as names of models have it, such as 1.2B."""
    size, unit = (1e9, "B") if weights >= 1e9 else (1e6, "M")
    return f"{weights / size:.1f}{unit}"


async def tags(server: Server, _http: HttpRequest) -> Response:
    """List the models that are served."""
    pool = server.pool
    return await _listed([(server.options.alias or name, pool.paths.get(name), {}) for name in pool.names])


async def running(server: Server, _http: HttpRequest) -> Response:
    """List the models in memory, and when each will be unloaded if nobody uses it until then."""
    return await _listed(
        [(server.shown_name(served), served.model.path, _loaded_fields(served)) for served in server.pool.loaded]
    )


async def _listed(models: list[tuple[str, Path | None, Payload]]) -> Response:
    found = await asyncio.gather(*(asyncio.to_thread(model_files, path) for _, path, _ in models))
    return JSONResponse(
        {
            "models": [
                {
                    "name": name,
                    "model": name,
                    "modified_at": rfc3339(files.changed),
                    "size": files.size,
                    "digest": files.digest,
                    "details": files.details,
                }
                | fields
                for (name, _, fields), files in zip(models, found)
            ]
        }
    )


def _loaded_fields(served: ServedModel) -> Payload:
    begun = monotonic() if served.users else served.used_at
    left = served.idle_seconds - (monotonic() - begun)
    ends = _FOR_EVER if isinf(left) else datetime.now(UTC) + timedelta(seconds=left)
    return {"expires_at": rfc3339(ends), "size_vram": 0, "context_length": served.model.context_size}


async def show(server: Server, http: HttpRequest) -> Response:
    """Describe a model, which is loaded for that."""
    body = await read_object(http)
    name = body.pop("model", body.pop("name", None))
    async with server.use(name) as served:
        model = served.model
        files = await asyncio.to_thread(model_files, model.path)
        family = files.details["family"]
        return JSONResponse(
            {
                "modified_at": rfc3339(files.changed),
                "template": "" if model.template.is_fallback else model.template.source,
                "parameters": _parameters(served.defaults, model),
                "capabilities": await asyncio.to_thread(_capabilities, model),
                "details": files.details,
                "model_info": files.info | {f"{family}.context_length": model.context_size} if family else {},
            }
        )


def _parameters(defaults: Request, model: Model) -> str:
    """Return how requests are answered that say nothing else, in the lines of a Modelfile."""
    values = [("num_ctx", str(model.context_size)), *((name, f"{getattr(defaults, name):g}") for name in _SETTINGS)]
    values += [("stop", json.dumps(text, ensure_ascii=False)) for text in defaults.stop]
    return "\n".join(f"{name:<30} {value}" for name, value in values)


def _capabilities(model: Model) -> list[str]:
    """Return the capabilities of a model: always tools, since one that does not know them is told of them."""
    if not model.writes:
        return ["embedding"] if model.ranker is None else []
    found = ["completion", "tools"]
    if model.template.thinking_switch is not None or model.template.names_thoughts:
        found.append("thinking")
    if model.sees_images:
        found.append("vision")
    with suppress(ApiError):
        infill_tokens(model.tokenizer)
        found.append("insert")
    return found


async def version(_http: HttpRequest) -> Response:
    """Return the version of Ollama's API that is spoken."""
    return JSONResponse({"version": API_VERSION})
