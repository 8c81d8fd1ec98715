"""Log-probabilities of the tokens of a prompt, as lm-evaluation-harness and others ask for them."""

from __future__ import annotations

from tinychat.engine.sequence import new_sequence
from tinychat.generate.logprobs import TokenLogprobs, token_logprobs
from tinychat.generate.model import Model
from tinychat.generate.prompt import check_prompt
from tinychat.generate.sequence import Ids, Logits

# Rows of logits at once: they take a vocabulary's floats each, and other replies wait meanwhile.
_ROWS = 64


def prompt_logprobs(model: Model, ids: Ids, count: int) -> list[TokenLogprobs | int]:
    """Return the log-probabilities of all ids but the first, and of the `count` most likely alternatives.

    Of an image's ids there are none: the image token stands for each.

    Replies are written between the chunks of the pass. Errors are those of `Model.logits`.
    """
    check_prompt(ids, model.engine, model.context_size)
    sequence = new_sequence(model.engine, model.context_size)
    found: list[TokenLogprobs | int] = []
    following = iter(ids[1:])
    try:
        for part in sequence.step_ids(ids, count=_ROWS):
            with model.driver.exclusive():
                logits = sequence.step(part, len(ids), outputs=len(part))
            found += [_scored(model, row, token_id, count) for row, token_id in zip(logits, following)]
    finally:
        with model.driver.exclusive():
            sequence.release()
    return found


def _scored(model: Model, row: Logits, token_id: int, count: int) -> TokenLogprobs | int:
    images = model.engine.images
    if images is None or token_id < images.first:
        return token_logprobs(row, token_id, count)
    return images.token_id
