"""``POST /completion`` of llama-server: its fields, and answers in its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar, NamedTuple

from tinychat.errors import FieldError
from tinychat.generate.logprobs import TokenLogprobs
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Delta, FinishReason
from tinychat.generate.request import Request
from tinychat.generate.run import Prefill
from tinychat.serve import body_fields, llama_fields
from tinychat.serve.answering import Answer
from tinychat.serve.logprob_fields import token_list
from tinychat.serve.model_pool import ServedModel
from tinychat.serve.timings import progress_fields, timings
from tinychat.serve.wire import LLAMA, Payload, Wire
from tinychat.tools.definitions import tool_choice

_MOST_BEGUN = 1 << 40
_STOP_TYPES: dict[FinishReason | None, str] = {"stop": "eos", "stop_string": "word"}


class LlamaBody(NamedTuple):
    """The request of a body: `pairs` are its choices, all of the first prompt before those of the second.

    `max_tokens` is 0 where the prompt is only to be read, `is_list` whether the answer is a list.
    """

    pairs: list[tuple[Prompt, Request]]
    max_tokens: int | None
    is_list: bool
    is_streamed: bool
    returns_tokens: bool
    times_tokens: bool
    returns_progress: bool
    response_fields: list[str]
    slot: int | None


def read_llama(body: Payload, served: ServedModel) -> LlamaBody:
    """Return the request of a body to a model; `SettingError` names a field that is wrong."""
    fields, model = dict(body), served.model
    ids, is_list = llama_fields.take_prompts(fields, model)
    switches = ("stream", "return_tokens", "timings_per_token", "return_progress", "opens_thinking")
    is_streamed, returns_tokens, times_tokens, returns_progress, opens_thinking = [
        body_fields.take_bool(fields, name) for name in switches
    ]
    joins_prompt = body_fields.take_bool(fields, "joins_prompt", default=True)
    think_budget = body_fields.take_think_budget(fields)
    begun = body_fields.take_integer(fields, "begun", 0, _MOST_BEGUN) or 0
    counts = [body_fields.take_integer(fields, name, 1, body_fields.MOST_CHOICES) for name in ("n_cmpl", "n")]
    choices = counts[0] or counts[1] or 1
    max_tokens = llama_fields.take_most_tokens(fields)
    max_tokens = served.defaults.max_tokens if max_tokens is None else max_tokens
    max_tokens = None if max_tokens == -1 else max_tokens
    ignores_eos = body_fields.take_bool(fields, "ignore_eos")
    response_fields, slot = llama_fields.take_response_fields(fields), llama_fields.take_slot(fields)
    grammar, tools = llama_fields.take_llama_grammar(fields), tool_choice(fields.pop("tools", None), None, None)
    shown = frozenset(body_fields.take_ids(fields, "shown", model) if "shown" in fields else ())
    request = llama_fields.take_llama_request(fields, served.defaults, model)
    # A prompt that is only to be read is read for a token that nobody gets.
    request = replace(request, ignore_eos=ignores_eos, max_tokens=1 if max_tokens == 0 else max_tokens)
    request = body_fields.constrained(replace(request, think_budget=think_budget), grammar, model)
    if tools.tools:
        if grammar is not None:
            raise FieldError("tools", "cannot be given beside another constraint: leave one out")
        request = replace(request, constraint=model.call_constraint(replace(tools, constrains=True)))
    prompts = [
        Prompt(one, joins_prompt, opens_thinking=opens_thinking, shown=shown, begun=one[max(len(one) - begun, 0) :])
        for one in ids
    ]
    return LlamaBody(
        [*product(prompts, body_fields.choice_requests(request, choices))],
        max_tokens,
        is_list or choices > 1,
        is_streamed,
        returns_tokens,
        times_tokens,
        returns_progress,
        response_fields,
        slot,
    )


class LlamaAnswer(Answer):
    """The choices of a completion in llama-server's form; parameters are those of `ChatAnswer`."""

    wire: ClassVar[Wire] = LLAMA

    def __init__(self, body: Payload, served: ServedModel, name: str) -> None:
        asked, model = read_llama(body, served), served.model
        streams = [model.reply(*pair) for pair in asked.pairs]
        super().__init__(streams, asked.is_streamed)
        self.wanted_slot = asked.slot
        self._asked, self._model, self._name = asked, model, name
        self._choices = [_LlamaChoice() for _ in streams]

    def take(self, index: int, event: Delta | Prefill | None) -> Sequence[Payload]:
        """Take an event of a choice; return its events."""
        stream, choice = self.streams[index], self._choices[index]
        if isinstance(event, Prefill):
            if not self._asked.returns_progress:
                return ()
            return [self._partial(index, "", ()) | {"prompt_progress": progress_fields(event, stream)}]
        if event is None:
            return [
                llama_fields.chosen(self._final(index) | {"content": "", "tokens": []}, self._asked.response_fields)
            ]
        if self._asked.max_tokens == 0:
            return ()
        choice.add(event)
        fields = self._partial(index, event.text, event.ids) | self._probabilities(event.logprobs)
        if self._asked.times_tokens:
            fields["timings"] = timings([stream.summary])
        return [fields]

    def whole(self) -> Payload | list[Payload]:
        """Return the answer as one object, or as one for each choice."""
        answers = []
        for index, choice in enumerate(self._choices):
            answer = self._final(index) | self._probabilities(choice.logprobs)
            answers.append(llama_fields.chosen(answer, self._asked.response_fields))
        return answers if self._asked.is_list else answers[0]

    def _partial(self, index: int, text: str, ids: Sequence[int]) -> Payload:
        return {
            "index": index,
            "content": text,
            "tokens": [*ids],
            "stop": False,
            "id_slot": self.slot,
            "tokens_predicted": len(self._choices[index].ids),
            "tokens_evaluated": len(self.streams[index].reply.prompt.ids),
        }

    def _final(self, index: int) -> Payload:
        stream, choice, asked = self.streams[index], self._choices[index], self._asked
        reply, summary = stream.reply, stream.summary
        if asked.max_tokens == 0:
            summary = replace(summary, new_tokens=0)
        return {
            "index": index,
            "content": "".join(choice.texts),
            "tokens": choice.ids if asked.returns_tokens else [],
            "id_slot": self.slot,
            "stop": True,
            "model": self._name,
            "tokens_predicted": summary.new_tokens,
            "tokens_evaluated": summary.prompt_tokens,
            "generation_settings": self._settings(index),
            "prompt": self._model.tokenizer.decode(
                body_fields.spelled_ids(reply.prompt.ids, self._model), skip_special=False
            ),
            "has_new_line": any("\n" in text for text in choice.texts),
            "truncated": reply.finish_reason == "context",
            "stop_type": "limit" if asked.max_tokens == 0 else _STOP_TYPES.get(reply.finish_reason, "limit"),
            "stopping_word": reply.stop_string or "",
            "tokens_cached": summary.reused_tokens,
            "timings": timings([summary]),
        }

    def _settings(self, index: int) -> Payload:
        asked, most = self._asked, self._asked.max_tokens
        settings = llama_fields.setting_fields(asked.pairs[index][1], self._model.context_size)
        if most == 0:
            settings |= {"n_predict": 0, "max_tokens": 0}
        return settings | {
            "model": self._name,
            "stream": asked.is_streamed,
            "timings_per_token": asked.times_tokens,
            "seed": self.streams[index].summary.seed,
        }

    def _probabilities(self, scored: Sequence[TokenLogprobs]) -> Payload:
        if not scored:
            return {}
        return {"completion_probabilities": token_list(scored, self._model.tokenizer, with_id=True)}


class _LlamaChoice:
    """A choice as far as it is written."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.ids += delta.ids
        self.logprobs += delta.logprobs
