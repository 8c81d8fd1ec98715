"""A model of a server: one-shots are sent to it, and its replies stream back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

from tinychat.client.api import Api, ServerAnswer, sendable
from tinychat.errors import ServerError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, Summary
from tinychat.generate.stream import PrefillProgress

_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"


class RemoteModel:
    """The model of a server.

    By default `name` is the first model that the server lists. `ServerError` if the server does not answer, or lists no
    models.
    """

    def __init__(self, api: Api, name: str | None = None) -> None:
        self._api = api
        listed = api.get("/models")
        try:
            models = {str(model["id"]): model.get("owned_by") for model in listed["data"]}
        except (KeyError, TypeError, AttributeError):
            raise ServerError(f"{api.url} lists no models: is it a server of models?") from None
        if not models:
            raise ServerError(f"{api.url} has no models: load one there")
        self.name = next(iter(models)) if name is None else name
        # Servers of others may refuse the field.
        self._reports_progress = "tinychat" in models.values()

    def reply(
        self,
        asked: str | Sequence[Mapping[str, object]],
        fields: Mapping[str, Any],
        seed: int | None = None,
        on_prefill: PrefillProgress | None = None,
    ) -> RemoteStream:
        """Return the reply to messages, or the continuation of a text, which begins when it is read."""
        body = {"model": self.name, "stream": True, "stream_options": {"include_usage": True}, **fields}
        if isinstance(asked, str):
            path, body["prompt"] = "/completions", asked
        else:
            path, body["messages"] = "/chat/completions", sendable(asked)
        if seed is not None:
            body["seed"] = seed
        if self._reports_progress:
            body["return_progress"] = True
        return RemoteStream(self._api, path, body, on_prefill)


class RemoteReply:
    """A reply that a server has written."""

    def __init__(self) -> None:
        self.text = ""
        self.prompt = Prompt(())  # without ids: the server has them
        self.summary = Summary(0)  # counts of the server's, times as they were here

    def as_json(self) -> dict[str, object]:
        """Return the text and what is known of its end for programs."""
        summary = self.summary
        return {
            "text": self.text,
            "finish_reason": summary.finish_reason,
            "truncated": summary.is_cut,
            "prompt_tokens": summary.prompt_tokens,
            "reused_tokens": summary.reused_tokens,
            "new_tokens": summary.new_tokens,
        }

    def delta_as_json(self, delta: Delta) -> dict[str, object]:
        """Return the text of a delta for programs."""
        return {"text": delta.text}


class RemoteStream(Iterator[Delta]):
    """Reads a reply of a server; whatever ends it early, Ctrl-C included, ends the request.

    Thoughts, which a server sends apart from the answer, stand in a think section.
    """

    def __init__(self, api: Api, path: str, body: dict[str, Any], on_prefill: PrefillProgress | None) -> None:
        self.reply = RemoteReply()
        self._on_prefill = on_prefill
        self._api, self._path, self._body = api, path, body
        self._answer: ServerAnswer | None = None
        self._started = 0.0
        self._deltas = self._read()

    def start(self) -> None:
        """Send the request: the server then writes, whoever reads."""
        if self._answer is None:
            self._started = perf_counter()
            self._answer = self._api.send("POST", self._path, self._body)

    def __next__(self) -> Delta:
        return next(self._deltas)

    def to_end(self) -> RemoteReply:
        """Wait until the reply ends, and return it."""
        for _ in self:
            pass
        return self.reply

    def close(self) -> None:
        """End the request."""
        if self._answer is not None:
            self._answer.close()

    def _read(self) -> Iterator[Delta]:
        self.start()
        assert self._answer is not None
        in_thought = False
        with self._answer:
            for event in self._answer.events():
                for text, is_thinking in self._texts(event):
                    begin = (_OPEN if is_thinking else _CLOSE) if is_thinking != in_thought else ""
                    in_thought = is_thinking
                    self._note(begin + text)
                    yield Delta(begin + text)
        if self.reply.summary.finish_reason == "interrupted":
            raise ServerError(f"{self._api.url} ended a reply without saying why")

    def _texts(self, event: dict[str, Any]) -> list[tuple[str, bool]]:
        """Return the texts of an event, each with whether it is thought; take note of all else that it tells."""
        summary = self.reply.summary
        try:
            if (progress := event.get("prompt_progress")) and self._on_prefill is not None:
                cached = int(progress["cache"])
                self._on_prefill(int(progress["processed"]) - cached, int(progress["total"]) - cached)
            if usage := event.get("usage"):
                summary.prompt_tokens, summary.new_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
                summary.reused_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
                summary.decode_steps = max(summary.new_tokens - 1, 0)
            found: list[tuple[str, bool]] = []
            for choice in event.get("choices") or ():
                if reason := choice.get("finish_reason"):
                    summary.finish_reason = "length" if reason == "length" else "stop"
                delta = choice.get("delta") or {}
                thought = delta.get("reasoning_content") or delta.get("reasoning")
                found += [(str(thought), True)] if thought else []
                text = choice.get("text") or delta.get("content")
                found += [(str(text), False)] if text else []
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServerError(f"{self._api.url} sends an event that is none of a reply") from None
        return found

    def _note(self, text: str) -> None:
        self.reply.text += text
        summary, seconds = self.reply.summary, perf_counter() - self._started
        if not summary.first_token_seconds:
            summary.first_token_seconds = summary.prefill_seconds = seconds
        summary.decode_seconds = seconds - summary.first_token_seconds
