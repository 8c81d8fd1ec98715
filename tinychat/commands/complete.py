"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.asking import ask, is_message, say_if_no_template, text_prompt
from tinychat.commands.constraint_flags import constraint_flags, read_grammar
from tinychat.commands.loading import Loader
from tinychat.commands.options import ReplyOptions, check_template_flags, load_flags, reply_flags, split_flags
from tinychat.commands.prompt_text import prompt_text
from tinychat.commands.reply_output import write_json, write_jsonl, write_text

if TYPE_CHECKING:
    from tinychat.generate.loop import Generation
    from tinychat.generate.prefill import PrefillProgress


@click.command()
@click.argument("model", required=False)
@click.argument("source", required=False, type=click.Choice(["-"]), metavar="[-]")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; files and stdin come before it")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Put the text of this file first; repeatable",
)
@click.option("--system", metavar="TEXT", help="Standing instruction to the model")
@click.option(
    "--chat/--raw",
    "as_chat",
    default=None,
    help="Use the chat template, or continue the text as it is; default: the template if there is one",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of the text")
@click.option(
    "--jsonl", "as_jsonl", is_flag=True, help="Write a JSON object per piece as it comes, then one with the summary"
)
@click.option(
    "--logprobs",
    type=click.IntRange(0, 1000),
    metavar="N",
    help="In JSON, each token's natural log-probability and the N most likely tokens in its place, from the "
    "model's own logits: before penalty, temperature and every filter",
)
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Replies to write, with seeds SEED, SEED + 1, ...: in --json a list, as text with --- on stderr between them",
)
@click.option("-x", "--code", "code_only", is_flag=True, help="Write only the reply's first fenced code block")
@constraint_flags
@reply_flags
@load_flags
@click.pass_obj
def complete(
    load: Loader,
    /,
    model: str | None,
    source: str | None,
    prompt: str | None,
    files: tuple[Path, ...],
    system: str | None,
    as_chat: bool | None,
    as_json: bool,
    as_jsonl: bool,
    logprobs: int | None,
    samples: int,
    code_only: bool,
    schema: Path | None,
    grammar: Path | None,
    **flags: Any,
) -> None:
    """Write one reply of MODEL.

    It answers the texts of --file, of stdin and of -p, joined in this order. Stdin is read when
    it is no terminal, or when "-" asks for it.

    \b
    git diff | tinychat complete -p "Summarise the change above."
    tinychat complete --file notes.txt -p "List the open questions." --json
    tinychat complete -p "A shell loop over all .txt files, please." -x
    tinychat complete -p "Name and age of: Ada, 36" --schema person.json

    A schema or grammar limits what the model can say, but the model does not see it: tell it in the
    prompt what you want. A reply that --max-tokens cuts is not whole; --json then says "truncated".
    """  # noqa: D301
    if model == "-":
        model, source = None, "-"
    _check_combination(system, as_chat, as_json, as_jsonl, logprobs, code_only)
    loading, reply = split_flags(flags)
    rules = read_grammar(schema, grammar)
    text = prompt_text(prompt, source is not None, files)
    loaded = load(model, loading)
    asked = text_prompt(loaded, text, system, as_chat)
    if is_message(loaded, system, as_chat):
        say_if_no_template(loaded)
    constraint = None if rules is None else rules.compile(loaded)

    def start(sample: int, on_prefill: PrefillProgress | None) -> Generation:
        options = _reply_of(reply, sample)
        return ask(loaded, asked, options, on_prefill=on_prefill, logprobs=logprobs, constraint=constraint)

    if as_json:
        write_json(loaded, start, samples, code_only, logprobs is not None, asked.opens_thinking)
    elif as_jsonl:
        write_jsonl(loaded, start, samples, logprobs is not None)
    else:
        write_text(start, samples, code_only, asked.opens_thinking)


def _check_combination(
    system: str | None, as_chat: bool | None, as_json: bool, as_jsonl: bool, logprobs: int | None, code_only: bool
) -> None:
    check_template_flags(system, as_chat)
    if as_json and as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other: leave out one")
    if logprobs is not None and not (as_json or as_jsonl):
        raise click.UsageError("--logprobs is for programs: add --json or --jsonl")
    if code_only and as_jsonl:
        raise click.UsageError("--code needs the whole reply: use --json instead of --jsonl")


def _reply_of(reply: ReplyOptions, sample: int) -> ReplyOptions:
    """Return the options of one of several samples: a given seed grows by one with each."""
    seed = reply.sampling["seed"]
    return reply if seed is None else replace(reply, sampling=reply.sampling | {"seed": seed + sample})
