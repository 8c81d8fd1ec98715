"""Calibration texts: written by the model itself, or cut from a file.

A model that writes gives text of the kind that it will meet, and needs no data: every other text is a conversation in
its chat template, whose question it writes too; the others begin with a token drawn at random.
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
# Context of the model that writes these texts, and that the certificate measures: its text fits too.
MODEL_CONTEXT = 1024
# Shorter texts say too little about the inputs.
_FEWEST = 8


def write_texts(model: Model, texts: int, progress: Progress | None = None) -> list[list[int]]:
    """Let a model write texts of up to `TEXT_TOKENS` tokens; it writes the same ones each time.

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


def cut_texts(model: Encoder, room: int, text: str, texts: int) -> list[list[int]]:
    """Cut up to `texts` parts out of a text, spread evenly over it, of up to `room` tokens each.

    Raises
    ------
    SettingError
        If the text is too short.
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
    """Return what the chat template puts before the user's first words; nothing if there is no usable template."""
    try:
        first, second = (model.render_ids([{"role": "user", "content": word}], False) for word in ("A", "then 7"))
    except TextError:
        return []
    length = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), 0)
    return first[:length]


def _conversation(model: Model, opening: Sequence[int], length: int, seed: int) -> list[int] | None:
    """Let the model write a question and answer it; None if it writes none."""
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
    """Let the model continue a token drawn at random, also past the end of a text."""
    vocabulary = model.vocab_size
    prompt = [*model.encode(""), random.Random(seed).randrange(vocabulary)]
    return prompt + _continued(model, prompt, length - len(prompt), seed, ignore_eos=True)


def _continued(model: Model, prompt: Sequence[int], tokens: int, seed: int, ignore_eos: bool = False) -> list[int]:
    run = model.stream(prompt, max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=ignore_eos)
    for _ in run:
        pass
    return run.token_ids
