"""Calibration texts: written by the model itself, or cut from a file.

A model that writes gives text of the kind that it will meet, and needs no data: every other text is a conversation in
its chat template, whose question it writes too; the others begin with a token drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tinychat.errors import SettingError, TextError, TinychatError
from tinychat.generate.model import Model
from tinychat.generate.prompt import Prompt
from tinychat.generate.reply import Reply
from tinychat.generate.request import Request

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer


Progress = Callable[[int, int], None]
"""Called with (tokens written, tokens in all)."""

TEXT_TOKENS = 320
QUESTION_TOKENS = 64
# Context of the model that writes these texts, and of the quality report: its text fits too.
MODEL_CONTEXT = 1024
# Shorter texts say too little about the inputs.
_FEWEST = 8


def write_texts(model: Model, texts: int, progress: Progress | None = None) -> list[list[int]]:
    """Return texts of up to `TEXT_TOKENS` token ids that a model writes, prompts included; always the same ones."""
    length = min(TEXT_TOKENS, model.context_size)
    writer = _Writer(model, texts * length, progress)
    conversations = _begin_conversations(model, writer, length, range(0, texts, 2))
    begun = [conversations.get(seed) or _begin_freely(model, seed) for seed in range(texts)]
    continued = writer.write(
        [
            (ids, _request(length - len(ids), seed, ignore_eos=seed not in conversations))
            for seed, ids in enumerate(begun)
            if len(ids) < length
        ]
    )
    writer.end()
    ends = iter(continued)
    return [[*ids, *next(ends)] if len(ids) < length else ids[:length] for ids in begun]


def cut_texts(model: Model | Tokenizer, room: int, text: str, texts: int) -> list[list[int]]:
    """Cut up to `texts` parts out of a text, spread evenly over it, of up to `room` tokens each."""
    ids = model.encode(text, add_bos=False)
    if len(ids) < _FEWEST:
        raise SettingError(f"the calibration text has {len(ids)} tokens: give some thousands")
    prefix = model.encode("")
    length = min(TEXT_TOKENS, room) - len(prefix)
    starts = range(0, len(ids), length)
    step = max(1, len(starts) // texts)
    chosen = [ids[start : start + length] for start in starts[::step]][:texts]
    return [prefix + part for part in chosen if len(part) >= _FEWEST or len(chosen) == 1]


def _opening(model: Model) -> list[int]:
    """Return the chat template's tokens before the user's first words; none without a usable template."""
    try:
        first, second = (model.render_ids([{"role": "user", "content": word}], False) for word in ("A", "then 7"))
    except TextError:
        return []
    length = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), 0)
    return first[:length]


class _Writer:
    """Lets the model continue several prompts at once, and reports how many tokens of all texts there are."""

    def __init__(self, model: Model, tokens: int, progress: Progress | None) -> None:
        self._model, self._tokens, self._progress = model, tokens, progress
        self._written = 0

    def write(self, asked: Sequence[tuple[list[int], Request]]) -> list[list[int]]:
        """Return the continuation of each prompt."""
        replies: dict[int, list[int]] = {}
        prompts = ((Prompt(ids), request) for ids, request in asked)
        for number, got in self._model.write_many(prompts, parallel=len(asked)):
            if isinstance(got, TinychatError):
                raise got
            if isinstance(got, Reply):
                replies[number] = got.token_ids
            else:
                self._written += len(got.ids)
                self._report(self._written)
        return [replies[number] for number in range(len(asked))]

    def end(self) -> None:
        """Report that all texts are written; some end before their full length."""
        self._report(self._tokens)

    def _report(self, tokens: int) -> None:
        if self._progress is not None:
            self._progress(min(tokens, self._tokens), self._tokens)


def _begin_conversations(model: Model, writer: _Writer, length: int, seeds: Sequence[int]) -> dict[int, list[int]]:
    """Let the model write questions; return the prompt that each makes, by its seed, where it makes one."""
    opening = _opening(model)
    if not opening or len(opening) + QUESTION_TOKENS >= length:
        return {}
    questions = writer.write([(opening, _request(QUESTION_TOKENS, seed)) for seed in seeds])
    prompts = {}
    for seed, question in zip(seeds, questions, strict=True):
        words = model.decode(question).strip()
        if words:
            with suppress(TextError):
                prompts[seed] = model.render_ids([{"role": "user", "content": words}], add_generation_prompt=True)
    return prompts


def _begin_freely(model: Model, seed: int) -> list[int]:
    """Return a token drawn at random, after the beginning of every text; the text goes on past its end."""
    return [*model.encode(""), random.Random(seed).randrange(model.vocab_size)]


def _request(tokens: int, seed: int, ignore_eos: bool = False) -> Request:
    return Request(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=ignore_eos, loop_stop=False)
