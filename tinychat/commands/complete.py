"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tinychat.commands.constraint_flags import ConstraintFiles, constraint_flags, read_grammar
from tinychat.commands.loading import Loader
from tinychat.commands.options import (
    LoadOptions,
    TemplateFlags,
    load_flags,
    model_argument,
    request_flags,
    take,
    take_request,
)
from tinychat.commands.prompt_text import PromptFlags, prompt_text, say_if_no_template
from tinychat.commands.reply_output import OutputFlags, write_replies
from tinychat.generate.prompt import is_message, text_prompt


@click.command()
@model_argument()
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
@request_flags
@load_flags
@click.pass_obj
def complete(load: Loader, /, model: str | None, source: str | None, **flags: Any) -> None:
    """Write one reply of MODEL.

    It answers the texts of --file, of stdin and of -p, joined in this order. Stdin is read when
    it is not a terminal, or when "-" asks for it.

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
    texts, template, limits = take(PromptFlags, flags), take(TemplateFlags, flags), take(ConstraintFiles, flags)
    loading, output = take(LoadOptions, flags), take(OutputFlags, flags)
    request = take_request(flags)
    _check_combination(output, request.logprobs is not None)
    rules = read_grammar(limits)
    text = prompt_text(texts, source is not None)
    loaded = load(model, loading)
    if is_message(loaded, template.system, template.as_chat):
        say_if_no_template(loaded)
    if rules is not None:
        request = replace(request, constraint=rules.compile(loaded))
    write_replies(loaded, text_prompt(loaded, text, template.system, template.as_chat), request, output)


def _check_combination(output: OutputFlags, with_logprobs: bool) -> None:
    if output.as_json and output.as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other: leave out one")
    if with_logprobs and not (output.as_json or output.as_jsonl):
        raise click.UsageError("--logprobs is for programs: add --json or --jsonl")
    if output.code_only and output.as_jsonl:
        raise click.UsageError("--code needs the whole reply: use --json instead of --jsonl")
