"""The endpoints of stored responses, and of the count of tokens."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from tinychat.serve.model_pool import ServedModel
from tinychat.serve.response_store import ResponseStore
from tinychat.serve.responses import read_response
from tinychat.serve.wire import Payload


async def get_response(store: ResponseStore, http: HttpRequest) -> Response:
    """Return a stored response.

    Raises
    ------
    ApiError
    """
    return JSONResponse(store.get(http.path_params["response_id"]).response)


async def delete_response(store: ResponseStore, http: HttpRequest) -> Response:
    """Forget a stored response.

    Raises
    ------
    ApiError
    """
    response_id = http.path_params["response_id"]
    store.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


async def list_input_items(store: ResponseStore, http: HttpRequest) -> Response:
    """List the items that a stored response answers, the newest first unless ``?order=asc``.

    Raises
    ------
    ApiError
    """
    stored = store.get(http.path_params["response_id"])
    items = [*stored.earlier, *stored.given]
    if http.query_params.get("order") != "asc":
        items.reverse()
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": items, "has_more": False, **ends})


def count_input_tokens(store: ResponseStore, body: Payload, served: ServedModel) -> Payload:
    """Return the number of tokens of the prompt that a body makes."""
    asked, _ = read_response(body, served, store)
    return {"object": "response.input_tokens", "input_tokens": len(asked.prompt.ids)}
