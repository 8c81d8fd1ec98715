"""Errors as clients of the API get them: a status and an object with `error`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinychat.errors import (
    CacheFullError,
    FieldError,
    PromptTooLongError,
    SettingError,
    StoreError,
    TextError,
    TinychatError,
)

TOO_LONG = "context_length_exceeded"


class ApiError(TinychatError):
    """The error that ends a request, with all that its client is told."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        **fields: object,
    ) -> None:
        # Names in it are those of clients.
        message = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(message)
        self.status = status  # of HTTP
        self.retry_after = retry_after  # seconds after which a client may try again
        # In OpenAI's form, with `fields` beside those that it has.
        error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code, **fields}
        self.body = {"error": error}


def unknown_model(name: object, served: Iterable[str]) -> ApiError:
    """Return the error about a model that is not served."""
    message = f"model {str(name)[:100]!r} not found: served are {', '.join(served)}"
    return ApiError(404, message, param="model", code="model_not_found")


def as_api_error(error: TinychatError) -> ApiError:
    """Return the error of the API for one of the library; one of the API is itself."""
    message = str(error)
    match error:
        case ApiError():
            return error
        case PromptTooLongError():
            # Clients know an overflow by the first words, and shorten the conversation.
            limit = f"this model's maximum context length is {error.context_size} tokens"
            message = f"{limit}, but the prompt has {error.tokens}: shorten it"
            return ApiError(400, message, code=TOO_LONG, n_prompt_tokens=error.tokens, n_ctx=error.context_size)
        case CacheFullError():
            return ApiError(503, message, "server_error", code="cache_full", retry_after=1)
        case FieldError():
            return ApiError(400, message, param=error.field)
        case SettingError() | TextError():
            return ApiError(400, message)
        case StoreError():
            return ApiError(404, message, code="model_not_found", param="model")
    return ApiError(500, message, "server_error")
