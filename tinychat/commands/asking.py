"""Putting a prompt to a model: as it stands, or through the chat template."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinychat.chat.template_notice import NO_TEMPLATE
from tinychat.commands.options import ReplyOptions

if TYPE_CHECKING:
    from tinychat.generate.constraint import Constraint
    from tinychat.generate.loop import Generation
    from tinychat.generate.model import Model
    from tinychat.generate.prefill import PrefillProgress


@dataclass(frozen=True)
class Prompt:
    """What the model reads.

    Attributes
    ----------
    ids : list of int
        Token ids; nothing in the texts they come from has become a control token.
    joins_reply : bool
        Whether the reply goes on where the prompt's text ends.
    stop : tuple of str
        Texts that end a reply to this prompt, beside those that the user names.
    opens_thinking : bool
        Whether the reply begins inside a think section.
    """

    ids: list[int]
    joins_reply: bool
    stop: tuple[str, ...] = ()
    opens_thinking: bool = False


def text_prompt(model: Model, text: str, system: str | None = None, as_chat: bool | None = None) -> Prompt:
    """Return the prompt for one text: a message if `as_chat` says so or, by default, if the model has a template."""
    if not is_message(model, system, as_chat):
        return Prompt(model.encode(text), joins_reply=True)
    standing = [{"role": "system", "content": system}] if system else []
    return chat_prompt(model, [*standing, {"role": "user", "content": text}])


def is_message(model: Model, system: str | None, as_chat: bool | None) -> bool:
    """Return whether a text is put to the model as a message of a conversation."""
    if as_chat is None:
        return system is not None or not model.template.is_fallback
    return as_chat


def say_if_no_template(model: Model) -> None:
    """Tell on stderr that a conversation is put to a model that has no template for it."""
    if model.template.is_fallback:
        print(NO_TEMPLATE, file=sys.stderr, flush=True)


def chat_prompt(model: Model, messages: Sequence[Mapping[str, str]]) -> Prompt:
    """Return the prompt that asks the model to answer a conversation."""
    template = model.template
    return Prompt(model.render_ids(messages), False, template.stop_strings, template.opens_thinking)


def ask(
    model: Model,
    prompt: Prompt,
    reply: ReplyOptions,
    *,
    on_prefill: PrefillProgress | None = None,
    logprobs: int | None = None,
    constraint: Constraint | None = None,
) -> Generation:
    """Begin the reply to a prompt."""
    return model.stream(
        prompt.ids,
        max_tokens=reply.max_tokens,
        stop=(*reply.stop, *prompt.stop),
        joins_prompt=prompt.joins_reply,
        on_prefill=on_prefill,
        logprobs=logprobs,
        constraint=constraint,
        **reply.sampling,
    )
