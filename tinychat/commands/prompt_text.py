"""The prompt of a one-shot: the texts of files, of stdin and of the prompt itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinychat.errors import SettingError
from tinychat.files import HAS_NUL, read_text
from tinychat.generate.prompt import NO_TEMPLATE

if TYPE_CHECKING:
    from tinychat.generate.model import Model


def prompt_text(prompt: str | None, files: Sequence[Path], from_stdin: bool) -> str:
    """Join the texts of the files, of stdin and of the prompt, each on a new line.

    Stdin is read if it is not a terminal, if `from_stdin`, or if the prompt is "-".
    """
    if prompt == "-":
        prompt, from_stdin = None, True
    if prompt is not None:
        _check_argument(prompt)
    texts = [read_text(file) for file in files]
    if from_stdin or not sys.stdin.isatty():
        texts.append(_decoded(sys.stdin.buffer.read()))
    before = "".join(text if text.endswith("\n") else f"{text}\n" for text in texts if text)
    return before.removesuffix("\n") if prompt is None else before + prompt


def check_not_blank(prompt: str) -> None:
    """Raise a UsageError if a prompt is empty or white space."""
    if not prompt.strip():
        raise click.UsageError("the prompt is empty: give one with -p TEXT or --file PATH, or pipe it in")


def _decoded(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SettingError(f"stdin is not valid UTF-8 at byte {error.start}: convert it first") from error
    if "\0" in text:
        raise SettingError(f"stdin {HAS_NUL}")
    return text


def _check_argument(prompt: str) -> None:
    # Bytes of an argument that are not UTF-8 arrive as lone surrogates, which tokenizers refuse.
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SettingError("--prompt is not valid UTF-8: convert it first") from error


def warn_if_no_template(model: Model) -> None:
    """Warn on stderr that a model of a conversation has no chat template."""
    if model.template.is_fallback:
        print(NO_TEMPLATE, file=sys.stderr, flush=True)
