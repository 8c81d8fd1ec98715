"""tinychat batch: many prompts in, one result for each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands import options
from tinychat.commands.batch_answers import BatchAnswers
from tinychat.commands.batch_output import Answered, BatchOutput, in_order
from tinychat.commands.batch_results import BatchResults, Results, converted_folder
from tinychat.commands.batch_shards import Shard, merged, shard_of
from tinychat.commands.batch_tasks import Task, read_tasks
from tinychat.commands.column_flags import column_flags, columns_of
from tinychat.commands.constraint_flags import constraint_flags, read_constraint
from tinychat.commands.exit_codes import EXIT_CUT
from tinychat.commands.loading import Loader
from tinychat.commands.progress import progress_bar
from tinychat.commands.prompt_text import warn_if_no_template
from tinychat.errors import SettingError, TinychatError
from tinychat.generate.generation_config import own_defaults
from tinychat.generate.request import Request
from tinychat.rows.locations import Location
from tinychat.rows.prompts import TOGETHER, RowPrompts
from tinychat.rows.sources import RowReader
from tinychat.settings import LINE, names

if TYPE_CHECKING:
    from tinychat.generate.model import Model


@click.command()
@click.argument("source", metavar="IN", type=options.LOCATION)
@options.model_argument()
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    type=options.LOCATION,
    metavar="OUT",
    help="File or folder of the results; those that OUT.jsonl already holds are not computed again; - is stdout",
)
@column_flags
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
    type=options.LOCATION,
    metavar="FILE",
    multiple=True,
    help="Load no model: write the results of these files into OUT, and check that each row has one; repeatable",
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
    source: Location,
    model: str | None,
    target: Location,
    prompt_column: str | None,
    template: str | None,
    setting_columns: tuple[str, ...],
    as_chat: bool | None,
    parallel: int | None,
    shard: tuple[int, int] | None,
    parts: tuple[Location, ...],
    fail_on_cut: bool,
    schema: Path | None,
    grammar: Path | None,
    **flags: Any,
) -> None:
    """Answer every row of IN with MODEL.

    IN is a file in JSON Lines, CSV or Parquet, by the end of its name: .jsonl, .csv, .parquet, and .jsonl.gz,
    .jsonl.zst, .csv.gz. It may be a folder of such files, an address such as s3://bucket/rows.parquet, or - for stdin.

    A line of JSON Lines is an object with a prompt or the messages of a conversation. It may have an id (default:
    the line's number), settings that override the flags (SETTINGS), and OpenAI's response_format,
    json_object or json_schema, which constrains the reply, or OpenAI's tools, tool_choice and
    parallel_tool_calls: the calls are then in the result, and nothing is run.

    \b
    {"prompt": "Name three colours.", "max_tokens": 50}
    {"id": "b", "messages": [{"role": "user", "content": "hi"}], "seed": 7}
    {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

    The last example is a line of an OpenAI batch file, and gets a result in that form.

    In tables, and with --prompt-column, --template or --setting-column, these name the columns that ask, id is the
    row's id, and all other columns are data.

    OUT is any such file, a folder if IN is one, or - for stdout. Several rows are answered at once; a common prefix
    is computed once. OUT.jsonl gets one line for each, in the same order: id, a digest of the request, text,
    token_ids, finish_reason, counts and seed, or an error; the exit code is then 1. A table gets the columns of IN,
    reply, finish_reason, prompt_tokens, new_tokens and error, and the properties of --schema, typed. With a
    seed, or with temperature 0, the tokens are those of `tinychat complete` for the row alone. If the
    command is started again after Ctrl-C, it continues where it stopped, and answers rows of OUT.jsonl anew
    that had an error; it refuses a file with results of other prompts, settings or weights.

    Several machines share a file by --shard, and --merge joins their results:

    \b
    tinychat batch IN.jsonl MODEL --shard 0/2 -o 0.jsonl --seed 1
    tinychat batch IN.jsonl MODEL --shard 1/2 -o 1.jsonl --seed 1
    tinychat batch IN.jsonl --merge 0.jsonl --merge 1.jsonl -o OUT.jsonl
    """  # noqa: D301
    from tinychat.models.folder import model_fingerprint

    preferences = options.take_preferences(flags)
    options.check_raw(preferences, as_chat)
    _check_locations(source, target, shard, parts)
    rules, rules_text = read_constraint(schema, grammar)
    output = BatchOutput(source, target, None if schema is None else rules_text)
    rows = RowReader(source)
    columns = columns_of(rows, prompt_column, template, setting_columns)
    if parts:
        _merge(output, read_tasks(rows, Request(), columns), parts)
        return
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

    def tasks_of(rows: RowReader) -> Iterator[Task]:
        tasks = read_tasks(rows, request, columns)
        return tasks if shard is None else (task for task in tasks if shard_of(task.id, shard[1]) == shard[0])

    contents = [None if file is None else (rules_text or "").encode() for file in (schema, grammar)]
    common = (model_fingerprint(folder), loading.context, loading.kv, system, as_chat, thinking.wanted, *contents)
    tasks = tasks_of(rows)
    output.check_new()
    to_stdout = target.is_stream
    opened = (
        nullcontext(Results(sys.stdout.buffer, common)) if to_stdout else BatchResults(output.journal, tasks, common)
    )
    with opened as results:
        first = next(tasks, None)
        left = [*results.again, *([] if first is None else [first])]
        if left:
            output.check(left[0])
            loaded = loaded or load(model, loading)
            constraint = None if rules is None else loaded.constraint(rules)
            answers = BatchAnswers(RowPrompts(loaded, system, as_chat, thinking.wanted), constraint)
            # The bar shows it. Which rows are those of a shard, their ids say.
            total = rows.count() if sys.stderr.isatty() else None
            if total is not None and shard is not None:
                total = sum(1 for _ in tasks_of(RowReader(source)))
            _run(answers, chain(left, tasks), results, parallel, total, output)
        elif not results.done:
            of_shard = "" if shard is None else " of this shard"
            print(f"nothing to do: {_name(source, 'stdin')} has no rows{of_shard}", file=sys.stderr)
        elif output.is_appended:
            print(f"nothing to do: {target} already has all {results.done} results", file=sys.stderr)
    failed = results.failed
    if not to_stdout and not output.is_appended:
        journal = Location(str(output.journal))
        failed += output.write(in_order(tasks_of(RowReader(source)), RowReader(journal)))
        output.journal.unlink()
    if left:
        _print_summary(results, failed, _name(target, "stdout"))
    if failed:
        where = "the results" if to_stdout else target
        can_go_on = output.is_appended and not to_stdout
        remedy = "; once they are mended, the same command answers them" if can_go_on else ""
        raise TinychatError(f'{failed} of {results.done} rows failed: see "error" in {where}{remedy}')
    if fail_on_cut and results.cut:
        raise click.exceptions.Exit(EXIT_CUT)


batch.help = str(batch.help).replace("SETTINGS", ", ".join(names(entry=LINE)))


def _check_locations(
    source: Location, target: Location, shard: tuple[int, int] | None, parts: tuple[Location, ...]
) -> None:
    if parts and (shard or target.is_stream):
        raise click.UsageError("--merge writes all shards into one file: leave out --shard, and name the file with -o")
    if _are_same(source, target):
        raise click.UsageError("IN and OUT are the same file: give another file with -o")
    if not target.is_stream and _are_same(source, target.parent):
        raise click.UsageError(f"{target} is in {source}, whose files are read: give another file with -o")
    if any(_are_same(part, target) for part in parts):
        raise SettingError(f"{target} is one of the files to merge: give another file with -o")


def _are_same(one: Location, other: Location) -> bool:
    if one.is_stream or other.is_stream:
        return False
    if one.is_remote or other.is_remote:
        return one.name.rstrip("/") == other.name.rstrip("/")
    return other.path.exists() and os.path.samefile(one.path, other.path)


def _merge(output: BatchOutput, tasks: Iterator[Task], parts: tuple[Location, ...]) -> None:
    count = 0

    def counted() -> Iterator[Answered]:
        nonlocal count
        for answered in merged(tasks, parts):
            count += 1
            yield answered

    kinds = {file.format.is_table for part in parts for file in part.files()}
    if len(kinds) > 1:
        raise SettingError("some files to merge are tables, and others are not: merge files of one format")
    output.write(counted(), parts if kinds == {True} else ())
    print(f"merged {count} results of {len(parts)} files, one for each row: {output.target}", file=sys.stderr)


def _name(location: Location, stream: str) -> str:
    return stream if location.is_stream else location.name


def _print_summary(results: Results, failed: int, target: str) -> None:
    cut = f", {results.cut} of them cut" if results.cut else ""
    print(
        f"answered {results.done - failed} of {results.done} rows{cut}: {target}; "
        f"this run: {results.tokens} tokens in {results.seconds:.1f} s, {results.rates}",
        file=sys.stderr,
    )


def _run(
    answers: BatchAnswers,
    tasks: Iterator[Task],
    results: Results,
    parallel: int | None,
    total: int | None,
    output: BatchOutput,
) -> None:
    """Answer the tasks that have no result yet, of `total` if that is known; after Ctrl-C, print how to continue."""
    is_warned = False

    def check(task: Task) -> None:
        nonlocal is_warned
        output.check(task)
        if not is_warned and answers.is_conversation(task):
            is_warned = True
            warn_if_no_template(answers.model)

    results.begin()
    try:
        title = f"answering {_name(output.source, 'stdin') if output.source.is_stream else output.source.base_name}"
        of_all = "" if total is None else f" of {total}"
        with progress_bar(title, lambda: f"{results.done}{of_all} rows, {results.rates}") as progress:
            # Those of earlier runs tell nothing of this one's rate.
            progress(results.done, total)
            at_once = TOGETHER if output.source.can_be_read_again else 1
            for _ in answers.write(tasks, results, parallel, check, at_once):
                progress(results.done, total)
    except KeyboardInterrupt:
        remedy = ": the same command continues with the rest" if isinstance(results, BatchResults) else ""
        print(f"stopped after {results.done} rows{remedy}", file=sys.stderr)
        raise
