"""tinychat batch: many prompts in, one result for each."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands import options
from tinychat.commands.batch_results import BatchResults, Results, converted_folder
from tinychat.commands.batch_shards import Shard, merge, shard_of
from tinychat.commands.batch_tasks import Task, read_tasks
from tinychat.commands.constraint_flags import MAX_CONSTRAINT_BYTES, constraint_flags, read_grammar
from tinychat.commands.exit_codes import EXIT_CUT
from tinychat.commands.loading import Loader
from tinychat.commands.progress import progress_bar
from tinychat.commands.prompt_text import warn_if_no_template
from tinychat.errors import ContextError, FieldError, SettingError, TextError, TinychatError
from tinychat.files import read_stream, read_up_to
from tinychat.generate.generation_config import own_defaults
from tinychat.generate.prompt import Prompt
from tinychat.generate.request import Request
from tinychat.settings import LINE, names

if TYPE_CHECKING:
    from tinychat.conversation.reply_calls import ReplyCalls
    from tinychat.generate.grammar import Constraint
    from tinychat.generate.model import Model
    from tinychat.generate.reply import Reply

# Errors of one line, which do not end the batch.
LINE_ERRORS = (ContextError, SettingError, TextError)
# All tasks are in memory.
_MAX_BYTES = 512 << 20
# Compiled schemas in the cache.
_SCHEMAS = 8
# Stdin as the input, stdout as the output.
_STREAM = Path("-")


@click.command()
@click.argument("source", metavar="IN.jsonl", type=options.PATH)
@options.model_argument()
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=options.PATH,
    metavar="OUT.jsonl",
    help="File of the results; those that it already holds are not computed again; - is stdout",
)
@options.setting_flags("system", system="System prompt, for lines with a prompt")
@options.as_chat
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of lines to answer at once; default: tuned for the highest rate",
)
@click.option(
    "--shard",
    type=Shard(),
    metavar="I/N",
    help="Answer only the rows of shard I of N, from 0: chosen by a hash of the row's id",
)
@click.option(
    "--merge",
    "parts",
    type=options.PATH,
    metavar="FILE",
    multiple=True,
    help="Load no model: write the results of these files into OUT.jsonl, and check that each row has one; repeatable",
)
@options.fail_on_cut
@constraint_flags
@options.request_flags
@options.load_flags
@options.draft_flag
@click.pass_obj
def batch(
    load: Loader,
    /,
    source: Path,
    model: str | None,
    target: Path,
    as_chat: bool | None,
    parallel: int | None,
    shard: tuple[int, int] | None,
    parts: tuple[Path, ...],
    fail_on_cut: bool,
    schema: Path | None,
    grammar: Path | None,
    **flags: Any,
) -> None:
    """Answer every line of IN.jsonl with MODEL.

    A line is a JSON object with a prompt or the messages of a conversation. It may have an id (default:
    the line's number), settings that override the flags (SETTINGS), and OpenAI's response_format,
    json_object or json_schema, which constrains the reply, or OpenAI's tools, tool_choice and
    parallel_tool_calls: the calls are then in the result, and nothing is run.

    \b
    {"prompt": "Name three colours.", "max_tokens": 50}
    {"id": "b", "messages": [{"role": "user", "content": "hi"}], "seed": 7}
    {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

    The last example is a line of an OpenAI batch file, and gets a result in that form.

    IN.jsonl may be - for stdin, and OUT.jsonl - for stdout. Several lines are answered at once; a common
    prefix is computed once. OUT.jsonl gets one line for each, in the same order: id, a digest of the
    request, text, token_ids, finish_reason, counts and seed, or an error; the exit code is then 1. With a
    seed, or with temperature 0, the tokens are those of `tinychat complete` for the line alone. If the
    command is started again after Ctrl-C, it continues where it stopped; it refuses a file with results
    of other prompts, settings or weights.

    Several machines share a file by --shard, and --merge joins their results:

    \b
    tinychat batch IN.jsonl MODEL --shard 0/2 -o 0.jsonl --seed 1
    tinychat batch IN.jsonl MODEL --shard 1/2 -o 1.jsonl --seed 1
    tinychat batch IN.jsonl --merge 0.jsonl --merge 1.jsonl -o OUT.jsonl
    """  # noqa: D301
    from tinychat.models.folder import model_fingerprint

    preferences = options.take_preferences(flags)
    options.check_raw(preferences, as_chat)
    if _STREAM not in (source, target) and target.exists() and os.path.samefile(source, target):
        raise click.UsageError("IN.jsonl and OUT.jsonl are the same file: give another file with -o")
    from_stdin = source == _STREAM
    if parts and (shard or target == _STREAM):
        raise click.UsageError("--merge writes all shards into one file: leave out --shard, and name the file with -o")
    data = read_up_to(sys.stdin.buffer, Path("stdin"), _MAX_BYTES) if from_stdin else read_stream(source, _MAX_BYTES)
    if parts:
        count = merge([task.id for task in read_tasks(data, Request())], parts, target)
        print(f"merged {count} results of {len(parts)} files, one for each line: {target}", file=sys.stderr)
        return
    rules = read_grammar(schema, grammar)
    loaded: Model | None = None
    named, model = model, preferences.model(model)
    loading = preferences.resolve(named, model).loading
    folder = converted_folder(model)
    if folder is None:
        loaded = load(model, loading)
        folder = loaded.path
    own = own_defaults(folder) if loaded is None else loaded.own_defaults
    found = preferences.resolve(named, model, folder.name, advice=own, is_text=rules is None)
    thinking = found.thinking
    system = None if as_chat is False else found.chat.system
    request = replace(found.request, think_budget=thinking.budget)
    tasks = read_tasks(data, request)
    if shard is not None:
        tasks = [task for task in tasks if shard_of(task.id, shard[1]) == shard[0]]
    contents = [file and read_stream(file, MAX_CONSTRAINT_BYTES) for file in (schema, grammar)]
    common = (model_fingerprint(folder), loading.context, loading.kv, system, as_chat, thinking.wanted, *contents)
    to_stdout = target == _STREAM
    opened = nullcontext(Results(sys.stdout.buffer, common)) if to_stdout else BatchResults(target, tasks, common)
    with opened as results:
        if results.done < len(tasks):
            loaded = loaded or load(model, loading)
            constraint = None if rules is None else loaded.constraint(rules)
            answers = _Answers(loaded, system, as_chat, thinking.wanted, constraint)
            if any(map(answers.is_conversation, tasks[results.done :])):
                warn_if_no_template(loaded)
            _run(answers, tasks, results, parallel, _name(source, "stdin"))
            _print_summary(results, len(tasks), _name(target, "stdout"))
        else:
            print(f"nothing to do: {_name(target, 'stdout')} already has all {len(tasks)} results", file=sys.stderr)
    if results.failed:
        where = "the results" if to_stdout else target
        raise TinychatError(f'{results.failed} of {len(tasks)} lines failed: see "error" in {where}')
    if fail_on_cut and results.cut:
        raise click.exceptions.Exit(EXIT_CUT)


batch.help = str(batch.help).replace("SETTINGS", ", ".join(names(entry=LINE)))


def _name(path: Path, stream: str) -> str:
    return stream if path == _STREAM else str(path)


def _print_summary(results: Results, count: int, target: str) -> None:
    cut = f", {results.cut} of them cut" if results.cut else ""
    rate = results.tokens / results.seconds if results.seconds > 0.0 else 0.0
    cached = results.cached_tokens / max(1, results.prompt_tokens)
    print(
        f"answered {count - results.failed} of {count} lines{cut}: {target}; "
        f"this run: {results.tokens} tokens in {results.seconds:.1f} s, {rate:.1f} tok/s; "
        f"{cached:.0%} of the prompts from the cache",
        file=sys.stderr,
    )


def _run(answers: _Answers, tasks: list[Task], results: Results, parallel: int | None, source: str) -> None:
    """Answer the tasks that have no result yet; after Ctrl-C, print how to continue."""
    try:
        _answer_all(answers, tasks, results, parallel, f"answering {Path(source).name}")
    except KeyboardInterrupt:
        remedy = ": the same command continues with the rest" if isinstance(results, BatchResults) else ""
        print(f"stopped after {results.done} of {len(tasks)} lines{remedy}", file=sys.stderr)
        raise


def _answer_all(answers: _Answers, tasks: list[Task], results: Results, parallel: int | None, title: str) -> None:
    """Answer the tasks, several at once, and write the results in their order."""
    from tinychat.generate.reply import Delta

    first = results.done
    ready: dict[int, Reply | TinychatError] = {}
    with progress_bar(title) as progress:
        progress(results.done, len(tasks))
        requests = map(answers.request, tasks[first:])
        for number, got in answers.model.write_many(requests, parallel):
            if isinstance(got, Delta):
                continue
            if isinstance(got, TinychatError) and not isinstance(got, LINE_ERRORS):
                raise got
            ready[first + number] = got
            while results.done in ready:
                task, result = tasks[results.done], ready.pop(results.done)
                results.add(task, answers.model.name, result, answers.calls(task, result))
            progress(results.done, len(tasks))


@dataclass
class _Answers:
    """The prompts and requests of tasks, for one model."""

    model: Model
    system: str | None
    as_chat: bool | None
    thinking: bool | None
    constraint: Constraint | None

    def __post_init__(self) -> None:
        # Many tasks share a schema.
        self._compiled = lru_cache(_SCHEMAS)(self._compile)

    def is_conversation(self, task: Task) -> bool:
        """Return whether the task uses the chat template."""
        if not isinstance(task.prompt, str) or task.tools.tools:
            return True
        return task.url is None and self.model.takes_message(self.system, self.as_chat)

    def request(self, task: Task) -> tuple[Prompt, Request] | TinychatError:
        """Return the prompt and request of a task, or the error of its line."""
        if task.error is not None:
            return SettingError(task.error)
        try:
            return self._prompt(task), replace(task.request, constraint=self._constraint(task))
        except LINE_ERRORS as error:
            return error

    def calls(self, task: Task, result: Reply | TinychatError) -> ReplyCalls | None:
        """Return the calls of the reply to a task; None if it has no tools, or failed."""
        from tinychat.conversation.call_rules import CallRules
        from tinychat.generate.reply import Reply

        if not task.tools.tools or not isinstance(result, Reply):
            return None
        return CallRules(self.model, task.tools).of_whole_reply(result, f"{task.id}-")

    def _constraint(self, task: Task) -> Constraint | None:
        if task.tools.tools and self.constraint is not None:
            raise FieldError("tools", "cannot be given beside --schema or --grammar: leave one out")
        if task.tools.tools:
            return self.model.call_constraint(task.tools)
        return self.constraint if task.schema is None else self._compiled(task.schema)

    def _compile(self, schema: str) -> Constraint:
        # Imported here: it imports numpy.
        from tinychat.generate.grammar import Grammar

        return self.model.constraint(Grammar.from_schema(schema, "response_format"))

    def _prompt(self, task: Task) -> Prompt:
        tools = [tool.as_dict() for tool in task.tools.tools]
        if not isinstance(task.prompt, str):
            return self.model.chat_prompt(task.prompt, thinking=self.thinking, tools=tools)
        if tools:
            question = {"role": "user", "content": task.prompt}
            return self.model.chat_prompt([question], self.system, self.thinking, tools)
        if task.url is not None:
            return self.model.text_prompt(task.prompt, as_chat=False)
        return self.model.text_prompt(task.prompt, self.system, self.as_chat, self.thinking)
