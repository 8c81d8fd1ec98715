"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tinychat.commands.constraint_flags import constraint_flags, read_grammar
from tinychat.commands.default_command import model_and_prompt
from tinychat.commands.loading import Loader
from tinychat.commands.one_shot import Earlier, Question, last_one_shot
from tinychat.commands.options import (
    check_raw,
    complete_model,
    continue_flag,
    draft_flag,
    fail_on_cut,
    load_flags,
    model_option,
    request_flags,
    setting_flags,
    take_preferences,
    template_flag,
)
from tinychat.commands.prompt_template import PromptTemplate, variables_in
from tinychat.commands.prompt_text import check_not_blank, prompt_text, say_if_no_template
from tinychat.commands.reply_output import OutputFlags, write_replies
from tinychat.generate.precedence import Preferences


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
@continue_flag("one-shot, which gets this prompt as its next message")
@template_flag
@setting_flags("system")
@click.option(
    "--chat/--raw",
    "as_chat",
    default=None,
    help="Use the chat template, or continue the text as it is; default: the template if there is one",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of the text")
@click.option(
    "--jsonl", "as_jsonl", is_flag=True, help="Write a JSON object per delta as it comes, then one with the summary"
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
@setting_flags("plain", "stats", "log")
@constraint_flags
@request_flags
@load_flags
@draft_flag
@click.pass_obj
def complete(
    load: Loader,
    /,
    words: tuple[str, ...],
    named_model: str | None,
    prompt: str | None,
    files: tuple[Path, ...],
    continues: bool,
    as_chat: bool | None,
    schema: Path | None,
    grammar: Path | None,
    **flags: Any,
) -> None:
    """Write one reply of MODEL.

    It answers the texts of --file, of stdin and of PROMPT, joined in this order. Stdin is read when
    it is not a terminal, or when "-" stands for PROMPT. A single word is MODEL if it names one.

    \b
    tinychat complete "Why is the sky blue?"
    tinychat -c "And why is it red in the evening?"
    git diff | tinychat complete "Summarise the change above."
    tinychat complete smollm2-135m "List the open questions." --file notes.txt --json
    tinychat complete "A shell loop over all .txt files, please." -x
    tinychat complete "Name and age of: Ada, 36" --schema person.json
    tinychat -t translate language=German < letter.txt

    A schema or grammar limits what the model can say, but the model does not see it: tell it in the
    prompt what you want. A reply that --max-tokens cuts is not whole; --json then says "truncated".
    One reply as text is kept, with its prompt, for --continue and `tinychat log`.
    """  # noqa: D301
    preferences = take_preferences(flags)
    output = OutputFlags(**flags)
    check_raw(preferences, as_chat)
    _check_combination(output, "logprobs" in preferences.flags)
    if continues and as_chat is False:
        raise click.UsageError("--continue needs the chat template: leave out --raw")
    rules = read_grammar(schema, grammar)
    earlier = last_one_shot() if continues else Earlier()
    asked = _asked(words, named_model, prompt, files, preferences)
    preferences = earlier.under(asked.preferences)
    named = earlier.model if asked.model is None else asked.model
    model = preferences.model(named)
    loaded = load(model, preferences.resolve(named, model).loading)
    is_text = rules is None and not output.code_only
    found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults, is_text=is_text)
    system = None if as_chat is False else found.chat.system
    as_message = continues or loaded.takes_message(system, as_chat)
    if as_message:
        say_if_no_template(loaded)
    request = replace(found.request, think_budget=found.thinking.budget)
    if rules is not None:
        request = replace(request, constraint=loaded.constraint(rules))
    question = Question(earlier, asked.text, model, system, found)
    as_markdown = as_message and rules is None and not found.screen.plain
    write_replies(
        loaded,
        question.prompt(loaded, as_chat),
        request,
        replace(output, stats=found.screen.stats, as_markdown=as_markdown),
        question.keep if found.chat.log else None,
    )


@dataclass(frozen=True)
class _Asked:
    """MODEL, the text that it is to answer, and the preferences with the template's system prompt."""

    model: str | None
    text: str
    preferences: Preferences


def _asked(
    words: tuple[str, ...],
    named_model: str | None,
    prompt: str | None,
    files: tuple[Path, ...],
    preferences: Preferences,
) -> _Asked:
    """Read the words, files and stdin, and fill them into the template, if one is named."""
    values: dict[str, str] = {}
    others = [*words]
    if preferences.template is not None:
        others, values = variables_in(words)
    from_stdin = others[-1:] == ["-"]
    model, prompt = _model_and_prompt(others[: len(others) - from_stdin], named_model, prompt, from_stdin)
    text = prompt_text(prompt, files, from_stdin)
    if preferences.template is not None:
        section = preferences.configuration.template(preferences.template)
        text, system = PromptTemplate.of(preferences.template, section).fill(values, text)
        if system is not None:
            preferences = replace(preferences, flags={"system": system, **preferences.flags})
    check_not_blank(text)
    return _Asked(model, text, preferences)


def _model_and_prompt(
    words: Sequence[str], named_model: str | None, given: str | None, from_stdin: bool
) -> tuple[str | None, str | None]:
    """Return MODEL, and the prompt that the words ask, else the `given` one."""
    if named_model is not None:
        asked = " ".join(words)
        if asked and given is not None:
            raise click.UsageError("the prompt is given twice, as words and by -p: leave one out")
        return named_model, asked or given
    model, prompt = model_and_prompt(words, has_prompt=given is not None or from_stdin)
    if prompt and len(words) == 1 and not any(map(str.isspace, prompt)):
        print(f"{prompt!r} names no model: it is the prompt", file=sys.stderr)
    return model, given if prompt is None else prompt


def _check_combination(output: OutputFlags, with_logprobs: bool) -> None:
    if output.as_json and output.as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other: leave out one")
    if with_logprobs and not (output.as_json or output.as_jsonl):
        raise click.UsageError("--logprobs is for programs: add --json or --jsonl")
    if output.code_only and output.as_jsonl:
        raise click.UsageError("--code needs the whole reply: use --json instead of --jsonl")
