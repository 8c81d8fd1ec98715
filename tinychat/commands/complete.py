"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.loading import Loader
from tinychat.commands.options import ReplyOptions, load_flags, reply_flags, split_flags
from tinychat.commands.prompt_text import prompt_text

if TYPE_CHECKING:
    from tinychat.generate.loop import Generation
    from tinychat.generate.model import Model


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
    ids = _chat_ids(loaded, system, text) if as_chat else loaded.encode(text)
    write = _write_json if as_json else _write_text
    write(loaded, ids, reply, joins_prompt=not as_chat)


def _chat_ids(model: Model, system: str | None, text: str) -> list[int]:
    standing = [{"role": "system", "content": system}] if system else []
    return model.render_ids([*standing, {"role": "user", "content": text}])


def _write_text(model: Model, ids: list[int], reply: ReplyOptions, joins_prompt: bool) -> None:
    from tinychat.chat.rendering import Renderer

    renderer = Renderer(sys.stdout, sys.stderr, os.environ)
    try:
        run = model.stream(
            ids,
            max_tokens=reply.max_tokens,
            stop=reply.stop,
            on_prefill=renderer.prefill_progress,
            joins_prompt=joins_prompt,
            **reply.sampling,
        )
        for piece in run:
            renderer.text(piece.text)
    finally:
        renderer.end_reply()
    renderer.summary(run.summary)


def _write_json(model: Model, ids: list[int], reply: ReplyOptions, joins_prompt: bool) -> None:
    run = model.stream(
        ids, max_tokens=reply.max_tokens, stop=reply.stop, joins_prompt=joins_prompt, **reply.sampling
    )
    text = "".join(piece.text for piece in run)
    json.dump(_report(model.name, text, run), sys.stdout)
    sys.stdout.write("\n")


def _report(model: str, text: str, run: Generation) -> dict[str, object]:
    summary = run.summary
    return {
        "model": model,
        "text": text,
        "token_ids": run.token_ids,
        "finish_reason": summary.finish_reason,
        "truncated": summary.finish_reason in ("length", "context"),
        "prompt_tokens": summary.prompt_tokens,
        "new_tokens": summary.new_tokens,
        "prefill_tokens_per_second": summary.prefill_rate,
        "decode_tokens_per_second": summary.decode_rate,
        "first_token_seconds": summary.first_token_seconds,
        "seed": summary.seed,
    }
