"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tinychat.commands.constraint_flags import ConstraintFiles, constraint_flags, read_grammar
from tinychat.commands.loading import Loader
from tinychat.commands.options import (
    TemplateFlags,
    complete_model,
    draft_flag,
    fail_on_cut,
    load_flags,
    model_option,
    request_flags,
    setting_flags,
    take,
    take_preferences,
)
from tinychat.commands.prompt_text import PromptFlags, prompt_text, say_if_no_template
from tinychat.commands.reply_output import OutputFlags, write_replies
from tinychat.commands.words import model_and_prompt
from tinychat.generate.prompt import is_message, text_prompt


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=complete_model)
@model_option
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, as PROMPT is; files and stdin come before it")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Put the text of this file first; repeatable",
)
@setting_flags("system")
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
@setting_flags("logprobs")
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Replies to write, with seeds SEED, SEED + 1, ...: in --json a list, as text with --- on stderr between them",
)
@click.option("-x", "--code", "code_only", is_flag=True, help="Write only the reply's first fenced code block")
@fail_on_cut
@setting_flags("stats")
@constraint_flags
@request_flags
@load_flags
@draft_flag
@click.pass_obj
def complete(load: Loader, /, words: tuple[str, ...], named_model: str | None, **flags: Any) -> None:
    """Write one reply of MODEL.

    It answers the texts of --file, of stdin and of PROMPT, joined in this order. Stdin is read when
    it is not a terminal, or when "-" stands for PROMPT. A single word is MODEL if it names one.

    \b
    tinychat complete "Why is the sky blue?"
    git diff | tinychat complete "Summarise the change above."
    tinychat complete smollm2-135m "List the open questions." --file notes.txt --json
    tinychat complete "A shell loop over all .txt files, please." -x
    tinychat complete "Name and age of: Ada, 36" --schema person.json

    A schema or grammar limits what the model can say, but the model does not see it: tell it in the
    prompt what you want. A reply that --max-tokens cuts is not whole; --json then says "truncated".
    """  # noqa: D301
    preferences = take_preferences(flags)
    flags["stats"] = None
    texts, limits, output = take(PromptFlags, flags), take(ConstraintFiles, flags), take(OutputFlags, flags)
    template = TemplateFlags(preferences.flags.get("system"), flags["as_chat"])
    _check_combination(output, "logprobs" in preferences.flags)
    rules = read_grammar(limits)
    from_stdin = words[-1:] == ("-",)
    named, texts = _asked(words[: len(words) - from_stdin], named_model, texts, from_stdin)
    text = prompt_text(texts, from_stdin)
    model = preferences.model(named)
    loaded = load(model, preferences.resolve(named, model).loading)
    is_text = rules is None and not output.code_only
    found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults, is_text=is_text)
    if template.as_chat is not False:
        template = replace(template, system=found.chat.system)
    if is_message(loaded, template.system, template.as_chat):
        say_if_no_template(loaded)
    request = replace(found.request, think_budget=found.thinking.budget)
    if rules is not None:
        request = replace(request, constraint=rules.compile(loaded))
    prompt = text_prompt(loaded, text, template.system, template.as_chat, found.thinking.wanted)
    write_replies(loaded, prompt, request, replace(output, stats=found.screen.stats))


def _asked(
    words: tuple[str, ...], named_model: str | None, texts: PromptFlags, from_stdin: bool
) -> tuple[str | None, PromptFlags]:
    """Return MODEL, and the prompt's flags with what the words ask."""
    model: str | None = named_model
    if named_model is not None:
        prompt = " ".join(words) or None
        if prompt is not None and texts.prompt is not None:
            raise click.UsageError("the prompt is given twice, as words and by -p: leave one out")
    else:
        has_prompt = texts.prompt is not None or from_stdin
        model, prompt = model_and_prompt(words, has_prompt=has_prompt)
        if prompt is not None and len(words) == 1 and not any(map(str.isspace, prompt)):
            print(f"{prompt!r} names no model: it is the prompt", file=sys.stderr)
    return model, texts if prompt is None else replace(texts, prompt=prompt)


def _check_combination(output: OutputFlags, with_logprobs: bool) -> None:
    if output.as_json and output.as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other: leave out one")
    if with_logprobs and not (output.as_json or output.as_jsonl):
        raise click.UsageError("--logprobs is for programs: add --json or --jsonl")
    if output.code_only and output.as_jsonl:
        raise click.UsageError("--code needs the whole reply: use --json instead of --jsonl")
