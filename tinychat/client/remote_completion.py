"""A reply that a tinychat server writes to the token ids of a prompt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple

from tinychat.client.api import Api, ServerAnswer
from tinychat.errors import ServerError, SettingError
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, FinishReason, Summary
from tinychat.generate.request import Request
from tinychat.generate.run import MakeRoom
from tinychat.generate.stream import PrefillProgress
from tinychat.settings import LINE, names

_STOP_TYPES: Mapping[object, FinishReason] = {"eos": "stop", "word": "stop_string"}
_SECONDS_BETWEEN_LOOKS = 0.1


class RemoteCalls(NamedTuple):
    """A constraint that the server has: calls are held to the schemas of tools, which are in OpenAI's form."""

    tools: tuple[dict[str, object], ...]


class RemoteCompletion(Iterator[Delta]):
    """Reads one reply; parameters beside the first two are those of `tinychat.generate.model.Model.reply`.

    A context that is full goes on with what `make_room` leaves, which the server reads as another prompt.
    """

    miss = None

    def __init__(
        self,
        api: Api,
        model: str,
        prompt: Prompt,
        request: Request,
        on_prefill: PrefillProgress | None = None,
        cancelled: Callable[[], bool] | None = None,
        make_room: MakeRoom | None = None,
    ) -> None:
        constraint: object = request.constraint
        self._calls = constraint if isinstance(constraint, RemoteCalls) else None
        if constraint is not self._calls:
            raise SettingError(f"a grammar cannot be sent to {api.url}: use complete --server, or chat without it")
        self.token_ids: list[int] = []
        self.summary = Summary(len(prompt.ids))
        self._api, self._model, self._prompt, self._request = api, model, prompt, request
        self._on_prefill, self._cancelled, self._make_room = on_prefill, cancelled, make_room
        self._answer: ServerAnswer | None = None
        self._is_closed = False
        self._deltas = self._read()

    def __next__(self) -> Delta:
        return next(self._deltas)

    def close(self) -> None:
        """End the reply, also while another thread waits for it."""
        self._is_closed = True
        if self._answer is not None:
            self._answer.abort()

    def _read(self) -> Iterator[Delta]:
        with nullcontext() if self._cancelled is None else _watched(self._cancelled, self.close):
            ids, joins = self._prompt.ids, self._prompt.joins_reply
            while True:
                yield from self._part(ids, joins)
                room = self._room()
                if room is None:
                    return
                ids, joins = [*room, *self.token_ids], True

    def _room(self) -> Sequence[int] | None:
        """Return the ids before the reply after which it goes on, where the context has ended it."""
        if self.summary.finish_reason != "context" or self._make_room is None:
            return None
        room = self._make_room(self.token_ids)
        return None if room is None else room.ids

    def _part(self, ids: Sequence[int], joins: bool) -> Iterator[Delta]:
        """Yield what one request brings; a reply that was ended is interrupted, whatever else broke off with it."""
        began, self.summary.finish_reason = perf_counter(), "interrupted"
        if self._is_closed:
            return
        try:
            with self._api.send("POST", "/completion", self._body(ids, joins)) as self._answer:
                for event in () if self._is_closed else self._answer.events():
                    if self._cancelled is not None and self._cancelled():
                        self.close()
                        return
                    if delta := self._delta(event, began):
                        yield delta
                    if event.get("stop"):
                        return
        except ServerError:
            if not self._is_closed:
                raise

    def _body(self, ids: Sequence[int], joins: bool) -> dict[str, Any]:
        request, prompt = self._request, self._prompt
        fields = {name: getattr(request, name) for name in names(entry=LINE)}
        fields |= {"logit_bias": [*map(list, request.biases)], "stop": [*request.stop, *prompt.stop]}
        if request.max_tokens is not None:
            fields["max_tokens"] = request.max_tokens - len(self.token_ids)
        begun = len(prompt.begun) + len(self.token_ids)
        ours: dict[str, object] = {
            "begun": begun or None,
            "joins_prompt": joins,
            "opens_thinking": prompt.opens_thinking,
            "think_budget": request.think_budget,
        }
        if prompt.shown:
            ours["shown"] = sorted(prompt.shown)
        if self._calls is not None:
            ours["tools"] = self._calls.tools
        sent = {"model": self._model, "prompt": [*ids], "stream": True, "return_progress": True, **fields, **ours}
        return {name: value for name, value in sent.items() if value is not None}

    def _delta(self, event: Mapping[str, Any], began: float) -> Delta | None:
        """Return the text and ids of an event, if it has any; take note of all else that it tells."""
        try:
            if (progress := event.get("prompt_progress")) and self._on_prefill is not None:
                cached = int(progress["cache"])
                self._on_prefill(int(progress["processed"]) - cached, int(progress["total"]) - cached)
            if event["stop"]:
                self._end(event)
            delta = Delta(str(event["content"]), tuple(map(int, event["tokens"])))
        except (KeyError, TypeError, ValueError):
            raise ServerError(f"{self._api.url} sends an event that is none of a completion") from None
        if not delta.text and not delta.ids:
            return None
        self.summary.first_token_seconds = self.summary.first_token_seconds or perf_counter() - began
        self.token_ids += delta.ids
        return delta

    def _end(self, event: Mapping[str, Any]) -> None:
        summary, timings = self.summary, event["timings"]
        if not summary.new_tokens:
            summary.reused_tokens = int(timings["cache_n"])
            summary.seed = int(event["generation_settings"]["seed"])
        summary.new_tokens += int(timings["predicted_n"])
        summary.decode_steps = max(summary.new_tokens - 1, 0)
        summary.prefill_seconds += float(timings["prompt_ms"]) / 1000
        summary.decode_seconds += float(timings["predicted_ms"]) / 1000
        summary.drafted_tokens += int(timings.get("draft_n", 0))
        summary.accepted_tokens += int(timings.get("draft_n_accepted", 0))
        summary.finish_reason = self._finish_reason(event)

    def _finish_reason(self, event: Mapping[str, Any]) -> FinishReason:
        if event["truncated"]:
            return "context"
        if event["stop_type"] == "word" and event["stopping_word"] in self._prompt.stop:
            return "stop"
        cut: FinishReason = "length" if self.summary.new_tokens == self._request.max_tokens else "loop"
        return _STOP_TYPES.get(event["stop_type"], cut)


@contextmanager
def _watched(cancelled: Callable[[], bool], close: Callable[[], None]) -> Iterator[None]:
    """Look now and then whether a reply was cancelled, however long the server is silent."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            if cancelled():
                close()
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
