"""The replies of a one-shot on stdout: as text, as JSON, as JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from tinychat.commands.exit_codes import EXIT_CUT
from tinychat.settings import SEEDS
from tinychat.text.code_block import CodeBlock, first_code_block

if TYPE_CHECKING:
    from tinychat.client.remote_model import RemoteReply, RemoteStream
    from tinychat.generate.reply import Reply, Summary
    from tinychat.generate.stream import PrefillProgress, Stream
    from tinychat.terminal.rendering import Renderer

    AnyStream = Stream | RemoteStream

SEPARATOR = "---"
"""The line between two replies of text, on stderr."""


@dataclass(frozen=True)
class OutputFlags:
    """The form and number of the replies."""

    as_json: bool  # write JSON at the end instead of text
    as_jsonl: bool  # write JSON lines while they stream instead of text
    samples: int
    code_only: bool  # write only the first fenced code block of each
    fail_on_cut: bool  # exit with `EXIT_CUT` if a reply is cut
    stats: bool | None = None  # write token counts and rates to stderr; None: if that is a terminal
    as_markdown: bool = False  # render Markdown on a terminal


def write_replies(
    name: str,
    begin: Callable[[int | None, PrefillProgress | None], AnyStream],
    seed: int | None,
    output: OutputFlags,
    save: Callable[[Reply | RemoteReply], None] | None = None,
    more_fields: Callable[[Any], Mapping[str, object]] | None = None,
) -> None:
    """Write replies of the model `name`, of which `begin` makes one for a seed.

    Each has the seed of the one before plus 1, if one is given. `save` gets a single reply of text, also where it was
    stopped; `more_fields` gives fields of JSON that come behind the others of a reply.
    """
    from tinychat.terminal.rendering import Renderer

    # Code is copied from the terminal, and must be what the model wrote.
    renderer = Renderer(sys.stdout, sys.stderr, os.environ, plain=output.code_only or not output.as_markdown)
    renderer.show_stats = output.stats
    shows_prefill = output.samples == 1 and not (output.as_json or output.as_jsonl)
    on_prefill = renderer.prefill_progress if shows_prefill else None
    seeds = [seed if seed is None else (seed + number) % SEEDS for number in range(output.samples)]
    runs = [begin(each, on_prefill) for each in seeds]
    renderer.starts_thinking = runs[0].reply.prompt.opens_thinking
    if output.samples > 1:
        # All are computed at once, and written one after the other.
        for run in runs:
            run.start()
    if output.as_json:
        _write_json(name, runs, output.code_only, more_fields)
    elif output.as_jsonl:
        _write_jsonl(name, runs)
    else:
        try:
            _write_text(renderer, runs, output.code_only)
        finally:
            if save is not None and len(runs) == 1:
                save(runs[0].reply)
    if output.fail_on_cut and any(run.reply.summary.is_cut for run in runs):
        raise click.exceptions.Exit(EXIT_CUT)


def _write_text(renderer: Renderer, runs: Sequence[AnyStream], code_only: bool) -> None:
    for number, run in enumerate(runs):
        if number > 0:
            renderer.notice(SEPARATOR)
            renderer.starts_thinking = run.reply.prompt.opens_thinking
        try:
            summary = (_write_code if code_only else _write_all)(renderer, run)
        finally:
            renderer.end_reply()
        renderer.summary(summary)


def _write_all(renderer: Renderer, run: AnyStream) -> Summary:
    for delta in run:
        renderer.text(delta.text)
    return run.reply.summary


def _write_code(renderer: Renderer, run: AnyStream) -> Summary:
    block = CodeBlock(run.reply.prompt.opens_thinking)
    for delta in run:
        renderer.text(block.add(delta.text))
        if block.closed:
            # The rest of the reply is not needed: it counts as complete.
            return replace(run.reply.summary, finish_reason="stop")
    renderer.text(block.finish())
    if not block.opened:
        # Show the reply without code, so that it is not lost.
        renderer.notice(run.reply.text)
    block.check()
    return run.reply.summary


def _write_json(
    name: str,
    runs: Sequence[AnyStream],
    code_only: bool,
    more_fields: Callable[[Any], Mapping[str, object]] | None,
) -> None:
    """Write one object, or a list of them if there are several replies."""
    reports = []
    for run in runs:
        reply = run.to_end()
        report = {"model": name} | reply.as_json()
        if more_fields is not None:
            report |= more_fields(reply)
        if code_only:
            report["code"] = first_code_block(reply.text, reply.prompt.opens_thinking)
        reports.append(report)
    _write_line(reports[0] if len(reports) == 1 else reports)


def _write_jsonl(name: str, runs: Sequence[AnyStream]) -> None:
    """Write an object for each delta while it streams, and one with the summary after each reply."""
    for number, run in enumerate(runs):
        for delta in run:
            _write_line({"sample": number} | run.reply.delta_as_json(delta))
        _write_line({"sample": number, "model": name, "summary": run.reply.summary.as_json()})


def _write_line(value: object) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
