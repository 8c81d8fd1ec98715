"""tinychat plan: time, memory and cost of a batch on other machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands import options
from tinychat.commands.batch_answers import BatchAnswers
from tinychat.commands.batch_shards import shard_of
from tinychat.commands.batch_tasks import Task, read_tasks
from tinychat.commands.column_flags import column_flags, columns_of
from tinychat.commands.loading import Loader
from tinychat.commands.planned_rows import PlannedRows
from tinychat.commands.progress import progress_bar
from tinychat.errors import SettingError, TinychatError
from tinychat.generate.prompt import check_prompt
from tinychat.json_file import read_json_object
from tinychat.rows.locations import Location
from tinychat.rows.prompts import ROW_ERRORS, RowPrompts
from tinychat.rows.sources import RowReader

if TYPE_CHECKING:
    from tinychat.bench.batch_rates import BatchRates
    from tinychat.bench.row_plan import RowCount
    from tinychat.bench.row_sample import RowSample
    from tinychat.generate.model import Model

_SAMPLE, _SAMPLE_SECONDS = 32, 60.0
_ABOVE_0 = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("source", metavar="IN", type=options.LOCATION)
@options.model_argument()
@click.option("--machines", type=click.IntRange(min=1), default=1, show_default=True, help="Number of machines")
@click.option("--cores", type=click.IntRange(min=1), help="Cores of each; default: as many as were measured")
@click.option("--memory", type=_ABOVE_0, metavar="GB", help="Memory of each; default: that of the measured machine")
@click.option(
    "--bandwidth",
    type=_ABOVE_0,
    metavar="GB/S",
    help="How fast each reads its memory; default: in proportion to the cores that were measured",
)
@click.option("--price-per-hour", "price", type=_ABOVE_0, metavar="PRICE", help="Price of a machine for an hour")
@click.option(
    "--rates",
    "rates_file",
    type=options.PATH,
    metavar="FILE",
    help="Take the rates from what `tinychat bench MODEL --batches` wrote, on a machine of that kind; default: measure",
)
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=_SAMPLE,
    show_default=True,
    help="Answer so many rows, for the length of the replies; 0: all are as long as their --max-tokens",
)
@column_flags
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object")
@options.setting_flags("system", system="System prompt, for lines with a prompt")
@options.as_chat
@options.request_flags
@options.load_flags
@options.draft_flag
@click.pass_obj
def plan(
    load: Loader,
    /,
    source: Location,
    model: str | None,
    machines: int,
    cores: int | None,
    memory: float | None,
    bandwidth: float | None,
    price: float | None,
    rates_file: Path | None,
    sample: int,
    prompt_column: str | None,
    template: str | None,
    setting_columns: tuple[str, ...],
    as_json: bool,
    as_chat: bool | None,
    **flags: Any,
) -> None:
    """Estimate how long machines take to answer IN with MODEL.

    \b
    tinychat plan rows.jsonl MODEL --machines 20 --cores 8 --price-per-hour 0.40
    tinychat bench MODEL --batches > there.json       # on a machine of the kind that is planned
    tinychat plan rows.jsonl MODEL --machines 20 --rates there.json

    IN and its rows are those of `tinychat batch`, in the shards that its --shard makes, and so are the flags of columns
    and settings. The tokens of all prompts are counted, and a sample of the rows is answered for the length of the
    replies. Rates are measured here, with rows of that length, at several numbers of replies at once. What other
    cores, memory and memory speed make of them is computed; the time to start a machine and to load the model is left
    out.

    Stdout gets a few lines, or one JSON object, which --rates reads, too.
    """  # noqa: D301
    preferences = options.take_preferences(flags)
    options.check_raw(preferences, as_chat)
    rows = RowReader(source)
    columns = columns_of(rows, prompt_column, template, setting_columns)
    named, model = model, preferences.model(model)
    saved = None if rates_file is None else read_json_object(rates_file)
    loaded = load(model, preferences.resolve(named, model).loading)
    loaded.check_writes()
    rates = None if saved is None else _checked_rates(saved, loaded.name, rates_file)
    # Imported here: it needs the compiler, which a wrong path is told without.
    from tinychat.bench.batch_rates import LEVELS, measure_batches
    from tinychat.bench.row_plan import Machine, costs_of, count_rows, estimate
    from tinychat.bench.row_sample import RowSample

    given = preferences.resolve(named, model, loaded.name, advice=loaded.own_defaults)
    request = replace(given.request, think_budget=given.thinking.budget)
    system = None if as_chat is False else given.chat.system
    maker = _PromptMaker(BatchAnswers(RowPrompts(loaded, system, as_chat, given.thinking.wanted), None))
    taken = RowSample(sample)
    counts = count_rows(maker.prompts(read_tasks(rows, request, columns), machines, taken), machines)
    total = sum(counts[1:], counts[0])
    if not total.rows:
        raise SettingError(f"{'stdin' if source.is_stream else source} has no rows that can be answered")
    new_tokens, how = _reply_length(loaded, taken, total)
    if rates is None:
        read, most = total.read_tokens / total.rows, max(each.rows for each in counts)
        levels = [level for level in LEVELS if level <= most]
        with progress_bar("measuring") as progress:
            rates = measure_batches(
                loaded, request, prompt_tokens=read, new_tokens=new_tokens, levels=levels, progress=progress
            )
    each = cores or rates.cores
    machine = Machine(
        each,
        round(memory * 1e9) if memory else rates.memory,
        bandwidth or rates.bandwidth_gb_s * each / rates.cores,
    )
    costs = costs_of(loaded, round(total.prompt_tokens / total.rows + new_tokens))
    result = estimate(counts, new_tokens, rates, costs, machine)
    found = PlannedRows(loaded.name, counts, maker.failed, new_tokens, how, rates, machine, costs, result, price)
    print(json.dumps(found.as_json()) if as_json else found.as_text())


def _checked_rates(saved: Mapping[str, object], name: str, path: Path | None) -> BatchRates:
    """Return the rates of a file; SettingError if it has none, or those of another model."""
    from tinychat.bench.batch_rates import BatchRates

    remedy = f"write it with `tinychat bench {name} --batches`"
    if saved.get("model") != name:
        raise SettingError(f"{path} has no rates of the model {name}: {remedy}")
    try:
        return BatchRates.from_json(saved.get("batches"))
    except SettingError as error:
        raise SettingError(f"{path} {error}: {remedy}") from None


@dataclass
class _PromptMaker:
    """Makes the prompts of rows for one model; `failed` counts those that cannot be answered."""

    answers: BatchAnswers
    failed: int = 0

    def prompts(
        self, tasks: Iterable[Task], machines: int, sample: RowSample
    ) -> Iterator[tuple[int, Sequence[int], int | None]]:
        """Yield the machine, the prompt's ids and the token limit of each row, and let a sample have them."""
        model = self.answers.model
        for task in tasks:
            try:
                (asked,) = self.answers.requests([task])
                if isinstance(asked, TinychatError):
                    raise asked
                prompt, request = asked
                check_prompt(prompt.ids, model.engine, model.context_size)
            except ROW_ERRORS:
                self.failed += 1
                continue
            sample.add(prompt, request)
            yield shard_of(task.id, machines), prompt.ids, request.max_tokens


def _reply_length(model: Model, sample: RowSample, total: RowCount) -> tuple[float, str]:
    """Return the mean tokens of a reply, and how they are known."""
    from tinychat.bench.row_sample import reply_length

    if not sample.rows:
        if total.most_new_tokens is None:
            raise click.UsageError("--sample 0 needs the length of all replies: give --max-tokens")
        return total.most_new_tokens / total.rows, "the limit of all of them"
    with progress_bar("answering a sample of the rows") as progress:
        progress(0, 1)
        found = reply_length(model, sample, _SAMPLE_SECONDS)
    cut = f", {found.cut} of them unfinished: give --max-tokens" if found.cut else ""
    return found.tokens, f"as in a sample of {found.rows} rows{cut}"
