"""Texts to look at a model with: its own words, or a file's.

A model that is asked to write gives text of the kind that it will meet: half of it through its chat template, the
person's turn too, half of it freely, from a token drawn at random. No data has to be there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from tinychat.errors import SettingError, TextError
from tinychat.generate.model import Model


class Encoder(Protocol):
    """A model or a tokenizer."""

    def encode(self, text: str, add_bos: bool = True) -> list[int]: ...  # noqa: D102


Progress = Callable[[int, int], None]
"""Called with (tokens written, tokens in all)."""

TEXT_TOKENS = 320
QUESTION_TOKENS = 64
# Context of a model that writes or is compared: room for the certificate's text too.
MODEL_CONTEXT = 1024
# Fewest tokens of a text that says anything of the inputs.
_FEWEST = 8


def own_words(model: Model, texts: int, progress: Progress | None = None) -> list[list[int]]:
    """Let a model write texts of up to `TEXT_TOKENS` tokens: the same ones each time.

    Returns
    -------
    list of lists of int
        Token ids, prompts included.
    """
    written: list[list[int]] = []
    length = min(TEXT_TOKENS, model.context_size)
    opening = _opening(model)
    for seed in range(texts):
        if progress is not None:
            progress(seed * length, texts * length)
        ids = _conversation(model, opening, length, seed) if opening and seed % 2 == 0 else None
        written.append(ids or _free(model, length, seed))
    if progress is not None:
        progress(texts * length, texts * length)
    return written


def words_of(model: Encoder, room: int, text: str, texts: int) -> list[list[int]]:
    """Cut a text into up to `texts` runs of tokens, as many as `room` each, spread evenly over it.

    Raises
    ------
    SettingError
        If it is too short to say anything.
    """
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
    """Return what the chat template puts before a person's first words; nothing if that cannot be told."""
    try:
        first, second = (model.render_ids([{"role": "user", "content": word}], False) for word in ("A", "then 7"))
    except TextError:
        return []
    length = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), 0)
    return first[:length]


def _conversation(model: Model, opening: Sequence[int], length: int, seed: int) -> list[int] | None:
    """Let the model ask a question and answer it; None if it asks nothing."""
    if len(opening) + QUESTION_TOKENS >= length:
        return None
    question = _continued(model, opening, QUESTION_TOKENS, seed)
    words = model.decode(question).strip()
    if not words:
        return None
    try:
        prompt = model.render_ids([{"role": "user", "content": words}], add_generation_prompt=True)
    except TextError:
        return None
    if len(prompt) >= length:
        return prompt[:length]
    return prompt + _continued(model, prompt, length - len(prompt), seed)


def _free(model: Model, length: int, seed: int) -> list[int]:
    """Let the model go on from a token drawn at random, past ends of texts too."""
    vocabulary = model.vocab_size
    prompt = [*model.encode(""), random.Random(seed).randrange(vocabulary)]
    return prompt + _continued(model, prompt, length - len(prompt), seed, ignore_eos=True)


def _continued(model: Model, prompt: Sequence[int], tokens: int, seed: int, ignore_eos: bool = False) -> list[int]:
    run = model.stream(prompt, max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=ignore_eos)
    for _ in run:
        pass
    return run.token_ids
