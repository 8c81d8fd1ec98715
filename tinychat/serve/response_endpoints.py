"""The endpoints of stored responses, and of the count of tokens."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.serve.api_error import ApiError
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.response_store import ResponseStore
from tinychat.serve.responses import read_response
from tinychat.serve.wire import Payload

_PAGE, _LIMITS = "20", frozenset(map(str, range(1, 101)))


async def get_response(store: ResponseStore, http: HttpRequest) -> Response:
    """Return a stored response; `ApiError` if it is not stored, or cannot be had in that form."""
    if http.query_params.get("stream", "false") != "false":
        raise ApiError(400, "stream must be false: a stored response comes at once", param="stream")
    return JSONResponse(store.get(http.path_params["response_id"]).response)


async def delete_response(store: ResponseStore, http: HttpRequest) -> Response:
    """Forget a stored response; `ApiError` if it is not stored."""
    response_id = http.path_params["response_id"]
    store.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(store: ResponseStore, http: HttpRequest) -> Response:
    """List the items that a stored response answers, the newest first unless ``?order=asc``.

    ``?after=ID`` begins behind an item; ``?limit=N`` lists so many. `ApiError` if it is not stored, or one of these is
    wrong.
    """
    stored, query = store.get(http.path_params["response_id"]), http.query_params
    limit, order, after = query.get("limit", _PAGE), query.get("order", "desc"), query.get("after")
    if limit not in _LIMITS:
        raise ApiError(400, "limit must be a whole number, 1 to 100", param="limit")
    if order not in ("asc", "desc"):
        raise ApiError(400, 'order must be "asc" or "desc"', param="order")
    items = [*stored.earlier, *stored.given]
    if order == "desc":
        items.reverse()
    if after is not None:
        begin = next((index for index, item in enumerate(items, 1) if item["id"] == after), None)
        if begin is None:
            raise ApiError(400, "after must be the id of an item of this response", param="after")
        items = items[begin:]
    page = items[: int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": page, "has_more": len(page) < len(items), **ends})


def count_input_tokens(store: ResponseStore, body: Payload, served: ServedModel) -> Payload:
    """Return the number of tokens of the prompt that a body makes."""
    asked, _ = read_response(body, served, store)
    return {"object": "response.input_tokens", "input_tokens": len(asked.prompt.ids)}
