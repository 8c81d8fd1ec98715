"""The replies of a one-shot completion on stdout: as text, as JSON, as a stream of JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tinychat.commands.code_block import CodeBlock, first_code_block
from tinychat.commands.reply_report import piece_fields, summary_fields

if TYPE_CHECKING:
    from tinychat.chat.rendering import Renderer
    from tinychat.generate.loop import Generation
    from tinychat.generate.model import Model
    from tinychat.generate.prefill import PrefillProgress
    from tinychat.generate.summary import Summary

Starter = Callable[[int, "PrefillProgress | None"], "Generation"]
"""Begins the reply of this number, counted from 0."""

SEPARATOR = "---"
"""The line between two replies of text; on stderr, since no model wrote it."""


def write_text(start: Starter, samples: int, code_only: bool, thinking: bool) -> None:
    """Write the replies as they come; `thinking`: whether they begin inside a think section.

    Raises
    ------
    TextError
        If only code is wanted and a reply holds no whole block of it.
    """
    # Imported here: `tinychat --help` shall not wait for it.
    from tinychat.chat.rendering import Renderer

    # A continuation is no markdown, and what is copied from the terminal shall be what the model wrote.
    renderer = Renderer(sys.stdout, sys.stderr, os.environ, plain=True)
    for sample in range(samples):
        if sample > 0:
            renderer.notice(SEPARATOR)
        run = start(sample, renderer.prefill_progress)
        try:
            summary = _write_code(renderer, run, thinking) if code_only else _write_all(renderer, run)
        finally:
            renderer.end_reply()
        renderer.summary(summary)


def _write_all(renderer: Renderer, run: Generation) -> Summary:
    for piece in run:
        renderer.text(piece.text)
    return run.summary


def _write_code(renderer: Renderer, run: Generation, thinking: bool) -> Summary:
    block = CodeBlock(thinking)
    for piece in run:
        renderer.text(block.add(piece.text))
        if block.closed:
            # Nobody stopped the reply: it has given all that was asked for.
            return replace(run.summary, finish_reason="stop")
    renderer.text(block.finish())
    block.check()
    return run.summary


def write_json(
    model: Model, start: Starter, samples: int, code_only: bool, with_logprobs: bool, thinking: bool
) -> None:
    """Write one object, or the list of them when there is more than one sample; `thinking` as in `write_text`."""
    reports = []
    for sample in range(samples):
        run = start(sample, None)
        report = {"model": model.name} | piece_fields(model, run, with_logprobs) | summary_fields(run.summary)
        if code_only:
            report["code"] = first_code_block(str(report["text"]), thinking)
        reports.append(report)
    _write_line(reports[0] if samples == 1 else reports)


def write_jsonl(model: Model, start: Starter, samples: int, with_logprobs: bool) -> None:
    """Write one object for each piece as it comes, and one with the summary after each reply."""
    for sample in range(samples):
        run = start(sample, None)
        for piece in run:
            _write_line({"sample": sample} | piece_fields(model, [piece], with_logprobs))
        _write_line({"sample": sample, "model": model.name, "summary": summary_fields(run.summary)})


def _write_line(value: object) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
