"""The replies of a one-shot completion on stdout: as text, as JSON, as a stream of JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tinychat.commands.exit_codes import EXIT_CUT
from tinychat.settings import SEEDS
from tinychat.text.code_block import CodeBlock, first_code_block

if TYPE_CHECKING:
    from tinychat.generate.model import Model
    from tinychat.generate.prompt import Prompt
    from tinychat.generate.reply import Reply, Summary
    from tinychat.generate.request import Request
    from tinychat.generate.stream import Stream
    from tinychat.terminal.rendering import Renderer

SEPARATOR = "---"
"""The line between two replies of text; on stderr, since no model wrote it."""


@dataclass(frozen=True)
class OutputFlags:
    """In which form how many replies are written.

    Attributes
    ----------
    as_json, as_jsonl : bool
        As JSON at the end, or as JSON lines while they come; else as text.
    samples : int
        How many replies.
    code_only : bool
        Whether only the first fenced code block of each is wanted.
    fail_on_cut : bool
        Whether a reply that is cut is a failure.
    stats : bool, optional
        Whether what each took is said on stderr; None where that is a terminal.
    as_markdown : bool
        Whether a terminal shows the text drawn as markdown, as the chat does.
    """

    as_json: bool
    as_jsonl: bool
    samples: int
    code_only: bool
    fail_on_cut: bool
    stats: bool | None = None
    as_markdown: bool = False

    @property
    def is_for_programs(self) -> bool:
        """Whether nobody watches the replies come."""
        return self.as_json or self.as_jsonl


def write_replies(
    model: Model, prompt: Prompt, request: Request, output: OutputFlags, keep: Callable[[Reply], None] | None = None
) -> None:
    """Write as many replies as are wanted; a given seed grows by one with each.

    `keep` gets a reply that is the only one, and text, also where it was stopped.

    Raises
    ------
    click.exceptions.Exit
        With `EXIT_CUT`, if a reply is cut and that is a failure.
    TextError
        If only the text of code is wanted and a reply holds no whole block of it.
    """
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.terminal.rendering import Renderer

    # Code is copied from the terminal, and must be what the model wrote.
    renderer = Renderer(sys.stdout, sys.stderr, os.environ, plain=output.code_only or not output.as_markdown)
    renderer.starts_thinking = prompt.opens_thinking
    renderer.show_stats = output.stats
    on_prefill = None if output.is_for_programs or output.samples > 1 else renderer.prefill_progress
    requests = [_sample(request, number) for number in range(output.samples)]
    runs = [model.reply(prompt, each, on_prefill=on_prefill, ahead=None) for each in requests]
    if output.samples > 1:
        # Written at once, and read one after the other.
        for run in runs:
            run.start()
    if output.as_json:
        _write_json(model.name, runs, output.code_only)
    elif output.as_jsonl:
        _write_jsonl(model.name, runs)
    else:
        try:
            _write_text(renderer, runs, output.code_only)
        finally:
            if keep is not None and len(runs) == 1:
                keep(runs[0].reply)
    if output.fail_on_cut and any(run.reply.summary.is_cut for run in runs):
        raise click.exceptions.Exit(EXIT_CUT)


def _sample(request: Request, number: int) -> Request:
    return request if request.seed is None else replace(request, seed=(request.seed + number) % SEEDS)


def _write_text(renderer: Renderer, runs: Sequence[Stream], code_only: bool) -> None:
    """Write the replies as they come."""
    for number, run in enumerate(runs):
        if number > 0:
            renderer.notice(SEPARATOR)
            renderer.starts_thinking = run.reply.prompt.opens_thinking
        try:
            summary = _write_code(renderer, run) if code_only else _write_all(renderer, run)
        finally:
            renderer.end_reply()
        renderer.summary(summary)


def _write_all(renderer: Renderer, run: Stream) -> Summary:
    for delta in run:
        renderer.text(delta.text)
    return run.reply.summary


def _write_code(renderer: Renderer, run: Stream) -> Summary:
    block = CodeBlock(run.reply.prompt.opens_thinking)
    for delta in run:
        renderer.text(block.add(delta.text))
        if block.closed:
            # The reply was not stopped: it has given all that was asked for.
            return replace(run.reply.summary, finish_reason="stop")
    renderer.text(block.finish())
    if not block.opened:
        # Nobody else has it, and it took its time to be written.
        renderer.notice(run.reply.text)
    block.check()
    return run.reply.summary


def _write_json(name: str, runs: Sequence[Stream], code_only: bool) -> None:
    """Write one object, or the list of them when there is more than one reply."""
    reports = []
    for run in runs:
        reply = run.to_end()
        report = {"model": name} | reply.as_json()
        if code_only:
            report["code"] = first_code_block(reply.text, reply.prompt.opens_thinking)
        reports.append(report)
    _write_line(reports[0] if len(reports) == 1 else reports)


def _write_jsonl(name: str, runs: Sequence[Stream]) -> None:
    """Write one object for each delta as it comes, and one with the summary after each reply."""
    for number, run in enumerate(runs):
        for delta in run:
            _write_line({"sample": number} | run.reply.delta_as_json(delta))
        _write_line({"sample": number, "model": name, "summary": run.reply.summary.as_json()})


def _write_line(value: object) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
