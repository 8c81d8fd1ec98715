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
# Shorter texts have too few inputs.
_FEWEST = 8


def write_texts(model: Model, texts: int, progress: Progress | None = None) -> list[list[int]]:
    """Return texts of up to `TEXT_TOKENS` token ids that a model writes, prompts included; always the same ones."""
    length = min(TEXT_TOKENS, model.context_size)
    total, written = texts * length, 0

    def count(tokens: int) -> None:
        nonlocal written
        written = min(written + tokens, total)
        if progress is not None:
            progress(written, total)

    conversations = _begin_conversations(model, count, length, range(0, texts, 2))
    # Others begin with a token drawn at random, and go on past their ends.
    random_tokens = [random.Random(seed).randrange(model.vocab_size) for seed in range(texts)]
    begun = [conversations.get(seed) or [*model.encode(""), token] for seed, token in enumerate(random_tokens)]
    asked = [
        (ids, _request(length - len(ids), seed, ignore_eos=seed not in conversations))
        for seed, ids in enumerate(begun)
        if len(ids) < length
    ]
    ends = iter(_continue(model, asked, count))
    # Some texts end before their full length.
    count(total)
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


def _continue(
    model: Model, asked: Sequence[tuple[list[int], Request]], count: Callable[[int], None]
) -> list[list[int]]:
    """Return the continuation of each prompt; `count` is called with the numbers of tokens as they are written."""
    replies: dict[int, list[int]] = {}
    prompts = ((Prompt(ids), request) for ids, request in asked)
    for number, got in model.write_many(prompts, parallel=len(asked)):
        if isinstance(got, TinychatError):
            raise got
        if isinstance(got, Reply):
            replies[number] = got.token_ids
        else:
            count(len(got.ids))
    return [replies[number] for number in range(len(asked))]


def _begin_conversations(
    model: Model, count: Callable[[int], None], length: int, seeds: Sequence[int]
) -> dict[int, list[int]]:
    """Let the model write questions; return the prompt that each makes, by its seed, where it makes one."""
    opening = _opening(model)
    if not opening or len(opening) + QUESTION_TOKENS >= length:
        return {}
    questions = _continue(model, [(opening, _request(QUESTION_TOKENS, seed)) for seed in seeds], count)
    prompts = {}
    for seed, question in zip(seeds, questions, strict=True):
        words = model.decode(question).strip()
        if words:
            with suppress(TextError):
                prompts[seed] = model.render_ids([{"role": "user", "content": words}], add_generation_prompt=True)
    return prompts


def _request(tokens: int, seed: int, ignore_eos: bool = False) -> Request:
    return Request(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=ignore_eos, loop_stop=False)
