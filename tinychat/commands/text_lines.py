"""Files with a text on each line, and the work on these texts: for `embed` and `rerank`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from tinychat.commands.progress import progress_bar
from tinychat.errors import ContextError, PromptTooLongError, TextError
from tinychat.files import MAX_TEXT_BYTES, read_stream, read_up_to

if TYPE_CHECKING:
    from tinychat.generate.embeddings import Steps, Vector
    from tinychat.generate.model import Model

STREAM = Path("-")
"""Stdin as the input, stdout as the output."""
# Work that is done sooner shows no progress.
_SILENT_SECONDS = 1.0


class Text(NamedTuple):
    """A text of the input: `id` is the line's own, or its number from 1; `line` names it in errors."""

    id: str | int
    text: str
    line: str


def read_texts(source: Path, field: str | None) -> Iterator[Text]:
    """Yield the texts of a file; TextError for a line without one."""
    name = "stdin" if source == STREAM else str(source)
    if source == STREAM:
        data = read_up_to(sys.stdin.buffer, Path(name), MAX_TEXT_BYTES)
    else:
        data = read_stream(source, MAX_TEXT_BYTES)
    for number, content in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if content.strip():
            yield _text(number, content.rstrip(b"\r"), field, f"{name} line {number}")


def _text(number: int, content: bytes, field: str | None, line: str) -> Text:
    """Return the text of a line, in UTF-8 or under a key of its JSON object."""
    try:
        if field is None:
            return Text(number, content.decode("utf-8"), line)
        found = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        kind = "text" if field is None else "JSON"
        raise TextError(f"{line} is not {kind} in UTF-8: {error}") from None
    text = found.get(field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise TextError(f"{line} is not a JSON object with a text under {field!r}: give another key with --field")
    own = found.get("id")
    return Text(own if isinstance(own, str) or type(own) is int else number, text, line)


def check_ids(model: Model, ids: Sequence[int], text: Text) -> None:
    """Raise ContextError or TextError, with the line's name, for a text that the model cannot read."""
    from tinychat.generate.prompt import check_prompt

    try:
        check_prompt(ids, model.engine, model.context_size)
    except PromptTooLongError as error:
        kind = ContextError if error.can_grow else TextError
        raise kind(f"{text.line}: {error}") from None


def run_steps(what: str, steps: Steps, counts: Sequence[int]) -> Iterator[Vector]:
    """Yield what steps give for texts of so many tokens, and show the progress of work that takes long."""
    began, done, left = monotonic(), 0, iter(counts)
    with progress_bar(what) as progress:
        for ended in steps:
            yield from ended
            done += sum(next(left) for _ in ended)
            if monotonic() - began > _SILENT_SECONDS:
                progress(done, sum(counts))
