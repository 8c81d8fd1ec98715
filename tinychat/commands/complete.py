"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import ReplyOptions, load_flags, reply_flags, split_flags
from tinychat.commands.prompt_text import prompt_text

if TYPE_CHECKING:
    from tinychat.generate.loop import Piece
    from tinychat.generate.model import Model
    from tinychat.generate.summary import Summary

Starter = Callable[..., "Iterable[Piece]"]
"""Begins the reply to a text; takes `on_prefill` too."""


@click.command()
@click.argument("model", required=False)
@click.argument("source", required=False, type=click.Choice(["-"]), metavar="[-]")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; text on stdin comes before it")
@click.option("--system", metavar="TEXT", help="Standing instruction to the model")
@click.option(
    "--chat/--raw",
    "as_chat",
    default=None,
    help="Use the chat template, or continue the text as it is; default: the template if there is one",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of the text")
@reply_flags
@load_flags
@click.pass_obj
def complete(
    load: Loader,
    /,
    model: str | None,
    source: str | None,
    prompt: str | None,
    system: str | None,
    as_chat: bool | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Write one reply of MODEL.

    It answers the text of -p, of stdin, or of both, stdin first. Stdin is read when it is no
    terminal, or when "-" asks for it.
    """
    if model == "-":
        model, source = None, "-"
    if system is not None and as_chat is False:
        raise click.UsageError("--system needs the chat template: leave out --raw")
    loading, reply = split_flags(flags)
    text = prompt_text(prompt, source is not None)
    loaded = load(model, loading)
    if as_chat is None:
        as_chat = system is not None or not loaded.template.is_fallback
    start = _chat_starter(loaded, system, reply) if as_chat else _raw_starter(loaded, reply)
    if as_json:
        _write_json(loaded, start(text))
    else:
        _write_text(loaded, start, text)


def _chat_starter(model: Model, system: str | None, reply: ReplyOptions) -> Starter:
    from tinychat.chat.session import Chat

    return Chat(model, system, max_tokens=reply.max_tokens, stop=reply.stop, **reply.sampling).stream


def _raw_starter(model: Model, reply: ReplyOptions) -> Starter:
    return partial(model.stream, max_tokens=reply.max_tokens, stop=reply.stop, **reply.sampling)


def _write_text(model: Model, start: Starter, text: str) -> None:
    from tinychat.chat.rendering import Renderer

    renderer = Renderer(sys.stdout, sys.stderr, os.environ)
    try:
        for piece in start(text, on_prefill=renderer.prefill_progress):
            renderer.text(piece.text)
    finally:
        renderer.end_reply()
    if model.summary is not None:
        renderer.summary(model.summary)


def _write_json(model: Model, pieces: Iterable[Piece]) -> None:
    written = list(pieces)
    if model.summary is not None:
        json.dump(_report(model.name, written, model.summary), sys.stdout)
        sys.stdout.write("\n")


def _report(model: str, pieces: Sequence[Piece], summary: Summary) -> dict[str, object]:
    return {
        "model": model,
        "text": "".join(piece.text for piece in pieces),
        "token_ids": [token_id for piece in pieces for token_id in piece.ids],
        "finish_reason": summary.finish_reason,
        "truncated": summary.finish_reason in ("length", "context"),
        "prompt_tokens": summary.prompt_tokens,
        "new_tokens": summary.new_tokens,
        "prefill_tokens_per_second": summary.prefill_rate,
        "decode_tokens_per_second": summary.decode_rate,
        "first_token_seconds": summary.first_token_seconds,
        "seed": summary.seed,
    }
