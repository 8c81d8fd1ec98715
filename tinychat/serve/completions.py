"""``POST /v1/completions``: texts or ids to continue, with ``echo`` and log-probabilities of the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from time import time
from typing import NamedTuple
from uuid import uuid4

from tinychat.conversation.openai import schema_of, usage
from tinychat.errors import FieldError
from tinychat.generate.logprobs import TokenLogprobs
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.prompt_logprobs import prompt_logprobs
from tinychat.generate.reply import Delta
from tinychat.generate.request import Request
from tinychat.generate.run import Prefill
from tinychat.serve import body_fields
from tinychat.serve.answering import Answer
from tinychat.serve.chat_choice import openai_reason
from tinychat.serve.logprob_fields import CompletionLogprobs, no_logprobs
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.timings import progress_fields, timings
from tinychat.serve.wire import Payload

_MOST_PROMPTS = 256
_MOST_LOGPROBS = 20
# OpenAI's default, which clients rely on.
_MAX_TOKENS = 16


class CompletionBody(NamedTuple):
    """The request of a body: `pairs` are its choices, all of the first prompt before those of the second."""

    pairs: list[tuple[Prompt, Request]]
    choices: int
    echoes: bool
    max_tokens: int
    options: body_fields.StreamOptions


def read_completion(body: Payload, served: ServedModel) -> CompletionBody:
    """Return the request of a body to a model; `FieldError` names a field that is wrong."""
    fields, model = dict(body), served.model
    prompts = [Prompt(ids) for ids in as_prompts(fields.pop("prompt", None), model)]
    options = body_fields.take_stream_options(fields)
    choices = body_fields.take_choices(fields)
    echoes = body_fields.take_bool(fields, "echo")
    logprobs = body_fields.take_integer(fields, "logprobs", 0, _MOST_LOGPROBS)
    if (best_of := body_fields.take_integer(fields, "best_of", 1, body_fields.MOST_CHOICES)) not in (None, choices):
        raise FieldError("best_of", f"must be n, not {best_of}")
    if fields.pop("suffix", None):
        raise FieldError("suffix", "is not supported: use /infill")
    max_tokens = body_fields.take_integer(fields, "max_tokens", 0, 1 << 24)
    max_tokens = _MAX_TOKENS if max_tokens is None else max_tokens
    if max_tokens == 0 and not echoes:
        raise FieldError("max_tokens", "must be 1 or more, unless echo is true")
    grammar = body_fields.take_grammar(fields, schema_of(fields.pop("response_format", None)), model)
    request = body_fields.take_request(fields, served.defaults)
    request = replace(request, logprobs=logprobs, max_tokens=max(1, max_tokens))
    request = body_fields.constrained(request, grammar, model)
    pairs = [*product(prompts, body_fields.choice_requests(request, choices))]
    return CompletionBody(pairs, choices, echoes, max_tokens, options)


def as_prompts(value: object, model: Model) -> list[list[int]]:
    """Return the ids of a prompt: a text, ids, or a list of texts or of lists of ids.

    `FieldError` if it is none of these.
    """
    if isinstance(value, str):
        return [model.encode(value)]
    if not isinstance(value, list) or not 0 < len(value):
        raise FieldError("prompt", "must be a text, a list of token ids, or a list of those")
    if all(type(one) is int for one in value):
        return [value]
    if len(value) > _MOST_PROMPTS:
        raise FieldError("prompt", f"must be at most {_MOST_PROMPTS} prompts")
    return [_as_ids(one, index, model) for index, one in enumerate(value)]


def _as_ids(value: object, index: int, model: Model) -> list[int]:
    if isinstance(value, str):
        return model.encode(value)
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return value
    raise FieldError(f"prompt[{index}]", "must be a text or a list of token ids")


class CompletionAnswer(Answer):
    """The choices of a completion, as chunks and as a whole; parameters are those of `ChatAnswer`."""

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        asked, model = read_completion(body, served), served.model
        writes = asked.max_tokens > 0
        streams = [model.reply(*pair) for pair in asked.pairs] if writes else []
        super().__init__(streams, asked.options.is_streamed)
        self._asked, self._model, self._name = asked, model, name
        self._id, self._created = f"cmpl-{uuid4().hex[:24]}", int(time())
        self._choices = [_CompletionChoice(model, *pair) for pair in asked.pairs]

    def prepare(self) -> list[Payload]:
        """Return the chunks with the echoes of the prompts."""
        return [self._chunk(index, *choice.echo()) for index, choice in enumerate(self._choices) if self._asked.echoes]

    def take(self, index: int, event: Delta | Prefill | None) -> Sequence[Payload]:
        """Take an event of a choice; return its chunks."""
        choice = self._choices[index]
        if isinstance(event, Prefill):
            if not self._asked.options.returns_progress:
                return ()
            return [self._chunk(index, "", None) | {"prompt_progress": progress_fields(event, self.streams[index])}]
        if event is not None:
            return [self._chunk(index, *choice.add(event))]
        choice.finish_reason = openai_reason(self.streams[index].reply.finish_reason)
        last = self._chunk(index, "", None, choice.finish_reason)
        return [last | {"timings": timings([self.streams[index].summary])}]

    def last(self) -> Iterable[Payload]:
        """Return the chunk with the usage, if it was asked for."""
        return [self._head() | {"choices": [], "usage": self._usage()}] if self._asked.options.includes_usage else ()

    def whole(self) -> Payload:
        """Return the answer as one object."""
        choices = [
            {
                "index": index,
                "text": choice.text,
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        timed = {"timings": timings([stream.summary for stream in self.streams])} if len(self.streams) == 1 else {}
        return self._head() | {"choices": choices, "usage": self._usage()} | timed

    def _usage(self) -> Payload:
        if self.streams:
            return usage([stream.summary for stream in self.streams], self._asked.choices)
        count = sum(len(prompt.ids) for prompt, _ in self._asked.pairs[:: self._asked.choices])
        return {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}

    def _head(self) -> Payload:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._name}

    def _chunk(self, index: int, text: str, logprobs: Payload | None, reason: str | None = None) -> Payload:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return self._head() | {"choices": [choice]}


class _CompletionChoice:
    """A choice as far as it is written."""

    def __init__(self, model: Model, prompt: Prompt, request: Request) -> None:
        self.text = ""
        self.finish_reason = "length"
        self.logprobs = None if request.logprobs is None else no_logprobs()
        self._fields = CompletionLogprobs(model.tokenizer)
        self._prompt, self._model, self._count = prompt, model, request.logprobs

    def echo(self) -> tuple[str, Payload | None]:
        """Put the prompt before the reply; return its text and log-probabilities."""
        ids, spelled = self._prompt.ids, body_fields.spelled_ids(self._prompt.ids, self._model)
        scored: Sequence[TokenLogprobs | int] = (
            [] if self._count is None else [spelled[0], *prompt_logprobs(self._model, ids, self._count)]
        )
        return self._add(self._model.decode(spelled), scored)

    def add(self, delta: Delta) -> tuple[str, Payload | None]:
        """Take a delta of the reply; return its text and log-probabilities."""
        return self._add(delta.text, delta.logprobs)

    def _add(self, text: str, scored: Sequence[TokenLogprobs | int]) -> tuple[str, Payload | None]:
        self.text += text
        if self.logprobs is None:
            return text, None
        added = self._fields.add(scored)
        for name, values in added.items():
            self.logprobs[name] += values
        return text, added
