"""The replies of a one-shot completion on stdout: as text, as JSON, as a stream of JSON lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tinychat.commands.code_block import CodeBlock, first_code_block

if TYPE_CHECKING:
    from tinychat.generate.loop import Generation
    from tinychat.generate.model import Model
    from tinychat.generate.prompt import Prompt
    from tinychat.generate.reply import Summary
    from tinychat.generate.request import Request
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
    """

    as_json: bool
    as_jsonl: bool
    samples: int
    code_only: bool


def write_replies(model: Model, prompt: Prompt, request: Request, output: OutputFlags) -> None:
    """Write as many replies as are wanted; a given seed grows by one with each.

    Raises
    ------
    TextError
        If only the text of code is wanted and a reply holds no whole block of it.
    """
    requests = [_sample(request, number) for number in range(output.samples)]
    if output.as_json:
        _write_json(model, prompt, requests, output.code_only)
    elif output.as_jsonl:
        _write_jsonl(model, prompt, requests)
    else:
        _write_text(model, prompt, requests, output.code_only)


def _sample(request: Request, number: int) -> Request:
    return request if request.seed is None else replace(request, seed=request.seed + number)


def _write_text(model: Model, prompt: Prompt, requests: Sequence[Request], code_only: bool) -> None:
    """Write the replies as they come."""
    # Imported here: it keeps `tinychat --help` fast.
    from tinychat.terminal.rendering import Renderer

    # A continuation is not markdown, and what is copied from the terminal must be what the model wrote.
    renderer = Renderer(sys.stdout, sys.stderr, os.environ, plain=True)
    for number, request in enumerate(requests):
        if number > 0:
            renderer.notice(SEPARATOR)
        run = model.reply(prompt, request, on_prefill=renderer.prefill_progress)
        try:
            summary = _write_code(renderer, run) if code_only else _write_all(renderer, run)
        finally:
            renderer.end_reply()
        renderer.summary(summary)


def _write_all(renderer: Renderer, run: Generation) -> Summary:
    for piece in run:
        renderer.text(piece.text)
    return run.summary


def _write_code(renderer: Renderer, run: Generation) -> Summary:
    block = CodeBlock(run.reply.prompt.opens_thinking)
    for piece in run:
        renderer.text(block.add(piece.text))
        if block.closed:
            # The reply was not stopped: it has given all that was asked for.
            return replace(run.summary, finish_reason="stop")
    renderer.text(block.finish())
    block.check()
    return run.summary


def _write_json(model: Model, prompt: Prompt, requests: Sequence[Request], code_only: bool) -> None:
    """Write one object, or the list of them when there is more than one reply."""
    reports = []
    for request in requests:
        report = {"model": model.name} | model.reply(prompt, request).to_end().as_json()
        if code_only:
            report["code"] = first_code_block(str(report["text"]), prompt.opens_thinking)
        reports.append(report)
    _write_line(reports[0] if len(reports) == 1 else reports)


def _write_jsonl(model: Model, prompt: Prompt, requests: Sequence[Request]) -> None:
    """Write one object for each piece as it comes, and one with the summary after each reply."""
    for number, request in enumerate(requests):
        run = model.reply(prompt, request)
        for piece in run:
            _write_line({"sample": number} | run.reply.piece_as_json(piece))
        _write_line({"sample": number, "model": model.name, "summary": run.summary.as_json()})


def _write_line(value: object) -> None:
    json.dump(value, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
