"""tinychat batch: many prompts in, one result for each."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.batch_results import BatchResults, converted_folder, model_stamp
from tinychat.commands.batch_tasks import Task, read_tasks
from tinychat.commands.constraint_flags import MAX_CONSTRAINT_BYTES, ConstraintFiles, constraint_flags, read_grammar
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
from tinychat.commands.progress import progress_bar
from tinychat.commands.prompt_text import say_if_no_template
from tinychat.errors import ContextError, SettingError, TextError, TinychatError
from tinychat.files import read_stream
from tinychat.generate.prompt import Prompt, chat_prompt, is_message, text_prompt

if TYPE_CHECKING:
    from tinychat.generate.grammar import Constraint
    from tinychat.generate.model import Model

# All tasks are kept in memory.
_MAX_BATCH_BYTES = 512 << 20


@click.command()
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path))
@model_argument()
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="OUT.jsonl",
    help="File of the results; lines that it has already are not computed again",
)
@click.option("--system", metavar="TEXT", help="Standing instruction, for lines with a prompt")
@click.option(
    "--chat/--raw",
    "as_chat",
    default=None,
    help="Use the chat template for prompts, or continue them as they are; default: the template if there is one",
)
@constraint_flags
@request_flags
@load_flags
@click.pass_obj
def batch(
    load: Loader,
    /,
    source: Path,
    model: str | None,
    target: Path,
    **flags: Any,
) -> None:
    """Answer every line of IN.jsonl with MODEL.

    A line is a JSON object with a prompt or the messages of a conversation. It may have an id, by
    default the line's number, and settings that override the flags: max_tokens, temperature, top_k,
    top_p, min_p, repeat_penalty, repeat_last_n, seed, stop.

    \b
    {"prompt": "Name three colours.", "max_tokens": 50}
    {"id": "b", "messages": [{"role": "user", "content": "hi"}], "seed": 7}

    OUT.jsonl gets a line for each, in the same order: id, a digest of what was asked, text, token_ids,
    finish_reason, counts and seed, or an error where a line cannot be answered; the exit code is then
    1. With a seed, or with temperature 0, the tokens are those that
    `tinychat complete` gives for the line alone. Started again after Ctrl-C, the command continues where
    it stopped; results of other prompts, settings or weights are refused.
    """  # noqa: D301
    template, limits, loading = take(TemplateFlags, flags), take(ConstraintFiles, flags), take(LoadOptions, flags)
    if target.exists() and os.path.samefile(source, target):
        raise click.UsageError("IN.jsonl and OUT.jsonl are the same file: give another one with -o")
    request = take_request(flags)
    rules = read_grammar(limits)
    tasks = read_tasks(read_stream(source, _MAX_BATCH_BYTES), request)
    loaded: Model | None = None
    folder = converted_folder(model)
    if folder is None:
        loaded = load(model, loading)
        folder = loaded.path
    contents = [file and read_stream(file, MAX_CONSTRAINT_BYTES) for file in (limits.schema, limits.grammar)]
    common = (model_stamp(folder), loading.context, loading.kv, template.system, template.as_chat, *contents)
    with BatchResults(target, tasks, common) as results:
        if results.done < len(tasks):
            loaded = loaded or load(model, loading)
            answers = _Answers(loaded, template, None if rules is None else rules.compile(loaded))
            if any(map(answers.is_conversation, tasks[results.done :])):
                say_if_no_template(loaded)
            _run(answers, tasks, results, f"answering {source.name}")
    if results.failed:
        raise TinychatError(f'{results.failed} of {len(tasks)} lines have no answer: see "error" in {target}')


def _run(answers: _Answers, tasks: list[Task], results: BatchResults, title: str) -> None:
    with progress_bar(title) as progress:
        progress(results.done, len(tasks))
        for task in tasks[results.done :]:
            results.add(task, answers.fields(task))
            progress(results.done, len(tasks))


class _Answers:
    """Turns tasks into the fields of their results."""

    def __init__(self, model: Model, template: TemplateFlags, constraint: Constraint | None) -> None:
        self._model = model
        self._template = template
        self._constraint = constraint

    def is_conversation(self, task: Task) -> bool:
        """Return whether the line is put to the model through the chat template."""
        template = self._template
        return not isinstance(task.prompt, str) or is_message(self._model, template.system, template.as_chat)

    def fields(self, task: Task) -> dict[str, object]:
        """Return text and counts, or the error where the line is to blame for it."""
        if task.error is not None:
            return {"error": task.error}
        request = replace(task.request, constraint=self._constraint)
        try:
            return self._model.reply(self._prompt(task), request).to_end().as_json()
        except (ContextError, SettingError, TextError) as error:
            return {"error": str(error)}

    def _prompt(self, task: Task) -> Prompt:
        if isinstance(task.prompt, str):
            return text_prompt(self._model, task.prompt, self._template.system, self._template.as_chat)
        return chat_prompt(self._model, task.prompt)
