"""tinychat complete: one prompt in, one text out."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands import options
from tinychat.commands.constraint_flags import constraint_flags, read_grammar
from tinychat.commands.default_command import model_and_prompt
from tinychat.commands.loading import Loader
from tinychat.commands.one_shot import OneShot, Previous, last_one_shot, read_images
from tinychat.commands.prompt_template import fill_template, variables_in
from tinychat.commands.prompt_text import check_not_blank, prompt_text, warn_if_no_template
from tinychat.commands.remote import remote_fields, remote_model, server_flags, tell_of_server
from tinychat.commands.reply_output import OutputFlags, write_replies
from tinychat.commands.tool_flags import read_tools, tool_flags
from tinychat.errors import FieldError
from tinychat.generate.precedence import Preferences
from tinychat.store.default_model import default_model

if TYPE_CHECKING:
    from tinychat.client.remote_model import RemoteModel

# A word that could be the name of a model.
_NAME = re.compile(r"[A-Za-z0-9._:/-]*[A-Za-z0-9]")


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]", shell_complete=options.complete_model)
@options.model_option
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, as PROMPT; files and stdin come before it")
@click.option(
    "--file", "files", multiple=True, type=options.PATH, help="Put the text of this file before the prompt; repeatable"
)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=options.PATH,
    help="Show this image to a model that sees, before the prompt; repeatable",
)
@options.setting_flags("image_detail")
@options.continue_flag("one-shot with this prompt as the next message")
@options.template_flag
@options.setting_flags("system")
@options.as_chat
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object instead of the text")
@click.option(
    "--jsonl", "as_jsonl", is_flag=True, help="Write a JSON object per delta as it streams, then one with the summary"
)
@options.setting_flags("logprobs")
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of replies, with seeds SEED, SEED + 1, ...: a list with --json, else separated by --- on stderr",
)
@click.option("-x", "--code", "code_only", is_flag=True, help="Write only the first fenced code block of the reply")
@options.fail_on_cut
@options.setting_flags("plain", "stats", "log")
@constraint_flags
@tool_flags
@options.request_flags
@options.load_flags
@options.draft_flag
@server_flags
@click.pass_obj
def complete(
    load: Loader,
    /,
    words: tuple[str, ...],
    named_model: str | None,
    prompt: str | None,
    files: tuple[Path, ...],
    images: tuple[Path, ...],
    continues: bool,
    as_chat: bool | None,
    schema: Path | None,
    grammar: Path | None,
    tool_file: Path | None,
    tool_choice: str | None,
    is_single: bool,
    server: str | None,
    api_key: str | None,
    **flags: Any,
) -> None:
    """Write one reply of MODEL.

    The prompt is the texts of --file, of stdin and of PROMPT, joined in this order. Stdin is read when
    it is not a terminal, or when PROMPT is "-". A single word is MODEL if a model has this name.

    \b
    tinychat complete "Why is the sky blue?"
    tinychat -c "And why is it red in the evening?"
    git diff | tinychat complete "Summarise the change above."
    tinychat complete smollm2-135m "List the open questions." --file notes.txt --json
    tinychat complete smolvlm-256m "What is in this picture?" --image photo.jpg
    tinychat complete "A shell loop over all .txt files, please." -x
    tinychat complete "Name and age of: Ada, 36" --schema person.json
    tinychat -t translate language=German < letter.txt
    tinychat complete "Why is the sky blue?" --server http://127.0.0.1:8080

    With --tools the model may call tools, and its calls are written instead of run.

    A schema or grammar limits what the model can write, but the model does not see it: describe the
    form in the prompt, too. A reply that --max-tokens cuts is incomplete; --json then says "truncated".
    A single reply as text is saved with its prompt for --continue and `tinychat log`.
    """  # noqa: D301
    # Imported here: they import numpy.
    from tinychat.conversation.openai import call_fields
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.text.parts import NO_IMAGES

    preferences = options.take_preferences(flags)
    output = OutputFlags(**flags)
    options.check_raw(preferences, as_chat)
    _check_flags(output, continues, as_chat, "logprobs" in preferences.flags)
    if images and as_chat is False:
        raise click.UsageError("--image needs the chat template: leave out --raw")
    choice = read_tools(tool_file, tool_choice, is_single)
    if tool_file is not None:
        _check_tools(output, schema or grammar, as_chat, server)
    constraint = None if server is not None else read_grammar(schema, grammar)
    previous = last_one_shot() if continues else Previous()
    named, text, preferences = _question(words, named_model, prompt, files, preferences, continues)
    # Where nothing else tells that it is a prompt.
    is_alone = named is None and words == (text,) and not (continues or server or preferences.role)
    if is_alone and _NAME.fullmatch(text):
        print(f"no model is named {text!r}: using it as the prompt", file=sys.stderr)
    preferences = previous.under(preferences)
    pictures = read_images(images)
    if server is not None:
        remote = remote_model(server, api_key, named, preferences)
        # What nobody asked for is left to the server.
        found = preferences.resolve(named, remote.name, is_text=False)
        fields = remote_fields(found, schema, grammar)
        one_shot = OneShot(previous, text, None, None if as_chat is False else found.chat.system, found, pictures)
        _ask(remote, one_shot, as_chat is not False, fields, output)
        return
    named = previous.model if named is None else named
    model = preferences.model(named)
    tell_of_server(model or default_model(), "complete")
    loaded = load(model, preferences.resolve(named, model).loading)
    if pictures and not loaded.sees_images:
        raise FieldError("images", NO_IMAGES)
    is_text = constraint is None and not output.code_only
    found = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults, is_text=is_text)
    one_shot = OneShot(previous, text, model, None if as_chat is False else found.chat.system, found, pictures)
    request = replace(found.request, think_budget=found.thinking.budget)
    if constraint is not None:
        request = replace(request, constraint=loaded.constraint(constraint))
    form = loaded.tool_template.form if choice.tools else None
    if form is not None:
        request = replace(request, constraint=loaded.call_constraint(choice))
    as_message = continues or bool(images) or form is not None or loaded.takes_message(one_shot.system, as_chat)
    if as_message:
        warn_if_no_template(loaded)
    as_markdown = as_message and constraint is None and not found.screen.plain
    rendered = one_shot.prompt(loaded, as_chat, choice.tools)
    write_replies(
        loaded.name,
        lambda seed, on_prefill: loaded.reply(rendered, replace(request, seed=seed), on_prefill=on_prefill, ahead=None),
        request.seed,
        replace(output, stats=found.screen.stats, as_markdown=as_markdown),
        one_shot.save if found.chat.log else None,
        None if form is None else lambda reply: call_fields(ReplyCalls.of_reply(reply, form, choice.tools, "")),
    )


def _ask(remote: RemoteModel, one_shot: OneShot, as_message: bool, fields: dict[str, Any], output: OutputFlags) -> None:
    """Write the replies of a server's model."""
    screen = one_shot.found.screen
    as_markdown = as_message and not screen.plain and not {"response_format", "grammar"} & fields.keys()
    write_replies(
        remote.name,
        partial(remote.reply, one_shot.messages if as_message else one_shot.text, fields),
        fields.pop("seed", None),
        replace(output, stats=screen.stats, as_markdown=as_markdown),
        one_shot.save if one_shot.found.chat.log else None,
    )


def _question(
    words: Sequence[str],
    named_model: str | None,
    prompt: str | None,
    files: Sequence[Path],
    preferences: Preferences,
    continues: bool,
) -> tuple[str | None, str, Preferences]:
    """Return MODEL, the prompt with files and stdin, and the preferences with the template's system prompt."""
    values: dict[str, str] = {}
    arguments = [*words]
    if preferences.template is not None:
        arguments, values = variables_in(words)
    from_stdin = arguments[-1:] == ["-"]
    if from_stdin:
        arguments.pop()
    model, prompt = _model_and_prompt(arguments, named_model, prompt, from_stdin, continues)
    text = prompt_text(prompt, files, from_stdin)
    if preferences.template is not None:
        section = preferences.configuration.template(preferences.template)
        text, system = fill_template(preferences.template, section, values, text)
        if system is not None:
            preferences = replace(preferences, flags={"system": system, **preferences.flags})
    check_not_blank(text)
    return model, text, preferences


def _model_and_prompt(
    words: Sequence[str], named_model: str | None, prompt: str | None, from_stdin: bool, continues: bool
) -> tuple[str | None, str | None]:
    """Return MODEL and the prompt: that of the words, else `prompt`, which is that of -p."""
    if named_model is not None:
        in_words = " ".join(words)
        if in_words and prompt is not None:
            raise click.UsageError("the prompt is given twice, as arguments and with -p: leave one out")
        return named_model, in_words or prompt
    model, argument = model_and_prompt(words, has_prompt=prompt is not None or from_stdin, continues=continues)
    return model, prompt if argument is None else argument


def _check_tools(output: OutputFlags, rules: Path | None, as_chat: bool | None, server: str | None) -> None:
    if not output.as_json:
        raise click.UsageError("--tools needs JSON output: add --json")
    if rules is not None:
        raise click.UsageError("--tools excludes --schema and --grammar: leave out one")
    if as_chat is False:
        raise click.UsageError("--tools needs the chat template: leave out --raw")
    if server is not None:
        raise click.UsageError("--tools cannot be used with --server: send the request to the server itself")


def _check_flags(output: OutputFlags, continues: bool, as_chat: bool | None, with_logprobs: bool) -> None:
    if output.as_json and output.as_jsonl:
        raise click.UsageError("--json and --jsonl exclude each other: leave out one")
    if with_logprobs and not (output.as_json or output.as_jsonl):
        raise click.UsageError("--logprobs needs JSON output: add --json or --jsonl")
    if output.code_only and output.as_jsonl:
        raise click.UsageError("--code needs the whole reply: use --json instead of --jsonl")
    if continues and as_chat is False:
        raise click.UsageError("--continue needs the chat template: leave out --raw")
