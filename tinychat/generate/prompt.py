"""Token ids of a prompt, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.errors import PromptTooLongError, SettingError

if TYPE_CHECKING:
    from tinychat.engine.engine import Engine

NO_TEMPLATE = "this model has no chat template: it continues a plain dialogue instead"
"""The notice for users whose messages go to such a model."""


@dataclass(frozen=True)
class Prompt:
    """The input of a model: token ids, none of them a control token that a text spelled."""

    ids: Sequence[int]
    # The reply goes on where the prompt's text ends. If not, as in a chat, a tokenizer that marks the first word by a
    # space loses that space.
    joins_reply: bool = True
    stop: tuple[str, ...] = ()  # texts that end the reply, beside those of the request
    opens_thinking: bool = False  # the reply begins inside a think section
    previous: Sequence[int] = ()  # ids of the turn before it in the same conversation, whose cache is used
    removed: int = 0  # so many tokens may be cut out of that where the two first differ: see `Room`
    shown: frozenset[int] = frozenset()  # control tokens that are text in the reply: those that tell its calls of tools
    begun: Sequence[int] = ()  # the last ids, where those are the beginning of the reply itself, which goes on


def check_prompt(ids: Sequence[int], engine: Engine, context_size: int) -> None:
    """Refuse ids that the engine must never see: none, ones outside the vocabulary, or more than the context holds."""
    if not ids:
        raise SettingError("the prompt is empty: give at least one token to continue")
    smallest, largest, vocab_size = min(ids), max(ids), engine.vocab_size
    if smallest < 0 or (largest >= vocab_size and engine.images is None):
        wrong = smallest if smallest < 0 else largest
        raise SettingError(f"token id {wrong} is outside the model's vocabulary: use 0 to {vocab_size - 1}")
    if len(ids) > context_size:
        raise PromptTooLongError(len(ids), context_size, engine.trained_length)
    if largest >= vocab_size and engine.images is not None:
        # All must be of images, none of which is gone.
        engine.images.tiles_of(ids)
        if engine.config.joint_tokens or engine.config.rotary_axes:
            # Parts cannot run alone, or take more positions than ids.
            engine.images.check_whole(ids)
