"""``POST /slots/N``: save, restore or erase the cache of the conversation that a slot has run last."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from time import perf_counter

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.engine.sequence import Sequence
from tinychat.errors import FieldError
from tinychat.generate.model import Model
from tinychat.serve.api_error import ApiError
from tinychat.serve.bodies import read_object
from tinychat.serve.server import Server
from tinychat.serve.slots import Slot
from tinychat.serve.wire import Payload

# A name in the folder, never a path, a hidden file, or a device of Windows.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_ACTIONS = ("save", "restore", "erase")


async def change_slot(server: Server, http: HttpRequest) -> Response:
    """Answer a request for the ``?action=`` with a slot; `TinychatError` if it cannot be done."""
    slot = _slot(server, http.path_params["number"])
    action = http.query_params.get("action")
    if action not in _ACTIONS:
        raise ApiError(400, f"action must be one of {', '.join(_ACTIONS)}", param="action")
    if slot.is_processing:
        raise ApiError(503, f"slot {slot.number} runs a request: try again later", "server_error", retry_after=1)
    body = await read_object(http, may_be_empty=True)
    path = None if action == "erase" else _path(server, body.get("filename"))
    # What a slot has run is of one model; what is restored may be of any.
    name = body.get("model") if action == "restore" else slot.model or None
    async with server.use(name) as served:
        return JSONResponse(await asyncio.to_thread(_done, action, slot, path, served.model))


def _slot(server: Server, number: str) -> Slot:
    slots = server.admission.slots
    if not number.isdecimal() or len(number) > 9 or int(number) >= len(slots):
        raise ApiError(404, f"there is no slot {number[:20]}: they are 0 to {len(slots) - 1}", code="not_found")
    return slots[int(number)]


def _path(server: Server, name: object) -> Path:
    if server.options.slot_folder is None:
        message = "no slot can be saved: start the server with --slot-save-path"
        raise ApiError(501, message, "not_supported_error", code="slots_not_saved")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ApiError(
            400, "filename must be a name of letters, digits, dots, hyphens and underscores", param="filename"
        )
    return server.options.slot_folder / name


def _done(action: str, slot: Slot, path: Path | None, model: Model) -> Payload:
    if not model.driver.shares_prefixes:
        message = "slots are not saved without shared prefixes: leave out --no-shared-prefixes"
        raise ApiError(501, message, "not_supported_error", code="slots_not_saved")
    if path is None:
        ids, slot.ids = [*slot.ids], ()
        return {"id_slot": slot.number, "n_erased": _erased(ids, model) if ids else 0}
    started = perf_counter()
    if action == "save":
        counts, time_name = {"n_saved": _saved(slot, path, model), "n_written": path.stat().st_size}, "save_ms"
    else:
        counts, time_name = {"n_restored": _restored(path, model), "n_read": path.stat().st_size}, "restore_ms"
    milliseconds = round(1000 * (perf_counter() - started), 3)
    return {"id_slot": slot.number, "filename": path.name, **counts, "timings": {time_name: milliseconds}}


def _saved(slot: Slot, path: Path, model: Model) -> int:
    if not slot.ids:
        raise FieldError("id_slot", f"{slot.number} has run no request: there is nothing to save")
    with model.driver.exclusive():
        sequence = _cached([*slot.ids], model)
        count = len(sequence.ids)
        try:
            if not sequence.save(path):
                raise FieldError("id_slot", f"{slot.number} has nothing cached any more: send its request again")
        finally:
            sequence.release()
    return count


def _cached(ids: list[int], model: Model) -> Sequence:
    """Return a sequence that holds what is cached of `ids`."""
    for idle in model.driver.idle:
        idle.insert_prefix()
    sequence = model.driver.recent.another()
    # All of them have run: the one that is added is not looked for.
    sequence.reuse([*ids, ids[-1]])
    return sequence


def _erased(ids: list[int], model: Model) -> int:
    """Let prompts reuse only what other texts share with `ids`; return how many tokens were cached."""
    with model.driver.exclusive():
        sequence = _cached(ids, model)
        count = len(sequence.ids)
        for idle in model.driver.idle:
            if idle.ids == ids[: len(idle.ids)]:
                idle.release()
        sequence.evict()
    return count


def _restored(path: Path, model: Model) -> int:
    with model.driver.exclusive():
        count = model.driver.recent.load(path)
    if not count:
        raise FieldError("filename", f"{path.name} has nothing that this model can use: save it again")
    return count
